"""A pilot runs first and says what it measured; an extended study is launched by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ablate.cli import main
from ablate.plan import plan_sweep
from ablate.rundir import StudyDir

SWEEP = """
# @package _global_
sweep:
  question: Does RoPE help?
  factors:
    position: [position=rope]
  seeds: 2
  pilot: 3
  decide: {smallest_effect: 0.5, spending: [2, 3]}
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_launches: None) -> list[str]:
    """A sweep whose trials take a second."""
    monkeypatch.chdir(tmp_path)
    text = "".join(f"{i} times {i} is {i * i}, and so it goes on. " for i in range(400))
    Path("train.txt").write_text(text)
    Path("held_out.txt").write_text(text[::-1][:2000])
    Path("sweeps").mkdir()
    Path("sweeps/mine.yaml").write_text(SWEEP)
    return [
        "sweep=mine",
        f"data.path={tmp_path}/train.txt",
        f"data.validation_path={tmp_path}/held_out.txt",
        f"data.cache_dir={tmp_path}/cache",
        "size=tiny",
        "train.batch_size=2",
        "train.sequence_length=16",
        "train.steps=4",
    ]


def test_the_pilot_comes_first_whatever_its_size(words) -> None:
    made = plan_sweep(words)
    assert [(t.arm, t.seed) for t in made.pilot_trials] == [("baseline", s) for s in range(3)]
    assert made.trials[:3] == made.pilot_trials
    assert len(made.trials) == 5, "a seed that the pilot alone has is the baseline's alone"
    assert made.manifest()["pilot"] == [t.id for t in made.pilot_trials]
    assert made.to_json()["pilot"] == made.manifest()["pilot"]
    assert made.seeds == 2


def test_a_launch_measures_the_noise_before_it_goes_on_and_again_after_extend(
    words, capsys
) -> None:
    assert main(["launch", *words]) == 0
    said = capsys.readouterr().err
    assert "The pilot of mine has run." in said
    assert "what pairing removes of it is not known yet" in said
    assert "2 degrees of freedom" in said
    assert said.index("The pilot of mine") < said.index("mine: 5 done")
    study = StudyDir(Path("runs/mine"))
    started = {t["id"]: study.trial(t["id"]).state().started for t in study.manifest()["trials"]}
    pilot = study.manifest()["pilot"]
    ended = max(study.trial(id).state().ended or 0 for id in pilot)
    assert all(start >= ended for id, start in started.items() if id not in pilot)

    assert main(["extend", "mine", "sweep.seeds=3"]) == 0
    assert "Look 2" in capsys.readouterr().out
    assert len(study.trials()) == 6, "the pilot had run the baseline's third seed"
    assert main(["plan", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["noise"]["kind"] == "studies"
    assert shown["cost"]["hours"] > 0
    assert main(["launch", "mine"]) == 0
    err = capsys.readouterr().err
    assert "6 done" in err
    assert "The pilot" not in err
