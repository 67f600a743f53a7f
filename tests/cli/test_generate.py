"""`ablate generate`: text from a trial, the same with a cache that lets nothing go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablate.cli import main
from tests.cli.user_code import small_trial

PROMPT = "the lord"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a trial with RoPE that has trained, and one that kept no weights."""
    here = tmp_path_factory.mktemp("generate")
    small = small_trial(here, steps=6)
    rope = [*small, "position=rope", f"runs_dir={here}/runs"]
    assert main(["train", *rope, "study=kept"]) == 0
    assert main(["train", *rope, "study=dropped", "train.keep_final=false"]) == 0
    return here


@pytest.fixture
def text(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str, study: str = "kept") -> tuple[int, str, str]:
        capsys.readouterr()
        (trial,) = (folder / f"runs/{study}/trials").iterdir()
        code = main(["generate", str(trial), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_with_room_for_all_every_cache_gives_the_plain_text(text: Any) -> None:
    code, plain, _ = text(PROMPT, "--tokens", "20")
    assert code == 0
    assert plain.startswith(PROMPT)
    for cache in ("full", "window", "lru", "heavy_hitter", "dynamic", "dynamic_as_published"):
        assert text(PROMPT, "--tokens", "20", f"cache={cache}")[1] == plain, cache
    heated = text(PROMPT, "--tokens", "20", "cache=preheated", "cache.preheat=64")
    assert heated[1] == plain


def test_samples_are_a_function_of_the_seed_and_beams_come_best_first(text: Any) -> None:
    options = [PROMPT, "--tokens", "12", "--temperature", "1.5", "cache=lru", "cache.budget=6"]
    first, again, other = (text(*options, "--seed", s)[1] for s in "334")
    assert first == again != other
    code, out, _ = text(PROMPT, "--tokens", "5", "--beams", "3", "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["texts"]) == 3
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert found["step"] == 6


@pytest.mark.parametrize(
    "words",
    [
        ["cache = the lord"],
        ["cache.clear() = the lord"],
        ["cache=the lord"],
        ["runs = 1"],
        ["x=1"],
        ["--", "cache=lru"],
        ["--", "runs_dir=nowhere"],
        ["--", "--tokens"],
    ],
)
def test_a_prompt_is_a_prompt_whatever_it_looks_like(text: Any, words: list[str]) -> None:
    code, out, err = text("--tokens", "2", "--json", "cache=full", *words)
    assert code == 0, err
    assert json.loads(out)["prompt"] == words[-1]


def test_a_trial_is_found_in_the_folder_that_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (trial,) = (folder / "runs/kept/trials").iterdir()
    words = ["generate", f"kept/{trial.name}", "x = 1", "--tokens", "2"]
    assert main([*words, f"runs_dir={folder}/runs"]) == 0
    assert capsys.readouterr().out.startswith("x = 1")
    assert main([*words, "run_dir=nowhere"]) == 2
    assert "run_dir=nowhere has no meaning here" in capsys.readouterr().err
    assert main(["generate", "trial=kept", "x = 1"]) == 2
    assert "trial=kept has no meaning here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b"], "name a trial"),
        ([PROMPT, "--tokens", "0"], "--tokens=0: must be at least 1"),
        ([PROMPT, "--top-k", "2", "--top-p", "0.5"], "contradicts --top-k"),
        ([PROMPT, "cache=dynamic", "cache.preheat=4"], "cache.preheat=4: preheats keys"),
        ([PROMPT, "cache=lruu"], "cache"),
        ([PROMPT, "cache=dynamic", "cache.budget=20"], "leaves nothing beside"),
    ],
)
def test_what_makes_no_sense_is_one_paragraph(text: Any, words: list[str], said: str) -> None:
    code, out, err = text(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_more_tokens_than_learnt_positions_is_said_of_the_flag(
    folder: Path, text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are there: no field of the model can be raised."""
    small = [*small_trial(folder, steps=1), "position=learned", f"runs_dir={folder}/runs"]
    assert main(["train", *small, "study=learned", "model.max_sequence_length=32"]) == 0
    code, _, err = text(5 * PROMPT, "--tokens", "40", study="learned")
    assert code == 2
    assert "--tokens 40" in err
    assert "the 32 positions" in err
    assert "Raise" not in err
    assert text(PROMPT, "--tokens", "20", study="learned")[0] == 0


def test_a_trial_without_weights_says_so(text: Any) -> None:
    code, _, err = text(PROMPT, study="dropped")
    assert code == 2
    assert "has no weights" in err
