"""A norm of one's own is edited after the launch: no attempt is spent, the arm can be replaced."""

from __future__ import annotations

import json
import shlex
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.rundir import StudyDir

Call = Callable[..., tuple[int, str, str]]

SWEEP = """
# @package _global_
sweep:
  question: Does mine help?
  baseline: []
  factors:
    norm: [model.layer_norm_type={}:Norm]
  seeds: 2
"""
NORM = """
import torch
class Norm(torch.nn.LayerNorm):
    def __init__(self, *args, **kwargs):
        super().__init__(64)
    def forward(self, x):
        return {} * super().forward(x)
"""


@pytest.fixture
def launched(call: Call, tmp_path: Path, small: list[str]) -> Callable[[str], StudyDir]:
    module = f"norms_{uuid.uuid4().hex[:8]}"  # the folder of an earlier test is still searched

    def write(code: str) -> StudyDir:
        (tmp_path / f"{module}.py").write_text(NORM.format(code))
        sys.modules.pop(module, None)  # each command is a process of its own
        return StudyDir(Path("runs/mine"))

    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(SWEEP.format(module))
    write("1 / 0")
    assert call("launch", "sweep=mine", *small, "train.steps=2", "cluster=debug")[0] == 1
    return write


def test_an_edited_norm_spends_no_attempt_and_is_replaced(
    call: Call, launched: Callable[[str], StudyDir], small: list[str]
) -> None:
    study = launched("1.0")
    manifest = study.manifest()
    (arm,) = {a["name"] for a in manifest["arms"]} - {manifest["baseline"]}
    old = [study.trial(t["id"]) for t in manifest["trials"] if t["arm"] == arm]
    for words in (["retry", "mine"], ["launch", "mine", "--retry-failed"]):
        code, _, err = call(*words)
        assert code == 2
        assert f"ablate extend mine --replace {arm}" in err
    assert [len(t.attempts()) for t in old] == [1, 1]
    code, _, err = call("launch", "sweep=mine", *small, "train.steps=2")
    assert code == 2
    assert f"ablate extend mine --replace {arm}" in err
    assert "study=mine-2" in err

    said = call("extend", "mine", "--replace", arm, "--dry-run")[1]
    assert "To be judged at alpha 0.05, as before." in said
    code, out, err = call("extend", "mine", "--replace", arm, "--json")
    assert code == 0, err
    assert json.loads(out)["exploratory"] is None, "nothing had come of it"
    now = study.manifest()
    assert now["revision"] == 2
    assert [t["id"] for t in now["replaced"]] == [t.id for t in old]
    assert [a["name"] for a in now["arms"]] == [a["name"] for a in manifest["arms"]]
    code, _, err = call("launch", "mine", "cluster=debug")
    assert code == 0, err
    assert [t.state().status for t in study.trials()] == ["done"] * 4
    assert [t.state().status for t in old] == ["failed"] * 2, "kept aside"
    code, out, _ = call("report", "mine", "--json")
    assert (code, json.loads(out)["exploratory"]) == (0, [])


def test_a_frozen_study_is_extended_by_the_words_that_its_refusal_names(
    call: Call, launched: Callable[[str], StudyDir], small: list[str]
) -> None:
    study = launched("1 / 0")
    asked = ["sweep=mine", *small, "train.steps=2"]
    for more, trials in (
        (["sweep.seeds=3"], 6),
        (["sweep.seeds=[0,1,2,5]"], 8),
        (["sweep.seeds=[0,1,2,5]", '+sweep.factors.bias=["bias=none"]'], 12),
    ):
        code, _, err = call("launch", *asked, *more)
        assert code == 2
        words = shlex.split(
            err.partition("To take that into the study: ")[2].partition(". Give")[0]
        )
        assert words[:3] == ["ablate", "extend", "mine"], err
        assert call(*words[1:])[0] == 0
        assert len(study.manifest()["trials"]) == trials
    for other in (["sweep.decide.alpha=0.01"], ["optim.lr=1e-2"]):
        code, _, err = call("launch", *asked, *other)
        assert code == 2
        assert "ablate extend" not in err, "that is another study"
        assert "study=mine-2" in err


def test_what_has_results_is_replaced_as_exploratory_and_not_without_need(
    call: Call, launched: Callable[[str], StudyDir]
) -> None:
    study = launched("1.0")
    arm = study.manifest()["arms"][1]["name"]
    assert call("extend", "mine", "--replace", arm)[0] == 0
    code, _, err = call("extend", "mine", "--replace", arm)
    assert code == 2
    assert "nothing to replace" in err
    assert call("launch", "mine", "cluster=debug")[0] == 0
    launched("2.0")
    code, _, err = call("extend", "mine", "sweep.seeds=3", "sweep.factors.bias=[bias=none]")
    assert code == 2
    code, out, _ = call("extend", "mine", "--replace", arm, "--dry-run", "--json")
    assert "after its results were there" in json.loads(out)["exploratory"]
    assert study.manifest()["revision"] == 2
    for words, said in (
        (["--replace", "baseline"], "another study"),
        (["--replace", "nome"], "has no arm 'nome'"),
        (["--replace", arm, "sweep.seeds=3"], "adds nothing"),
    ):
        code, _, err = call("extend", "mine", *words)
        assert code == 2
        assert said in err


def test_an_arm_whose_edit_is_undone_can_be_replaced_by_what_it_was(
    call: Call, launched: Callable[[str], StudyDir]
) -> None:
    study = launched("1 / 0")
    manifest = study.manifest()
    (arm,) = {a["name"] for a in manifest["arms"]} - {manifest["baseline"]}
    assert call("extend", "mine", "sweep.seeds=3")[0] == 0, "a trial of it that has not run"
    first = {t["id"] for t in study.manifest()["trials"] if t["arm"] == arm}
    launched("1.0")
    assert call("extend", "mine", "--replace", arm)[0] == 0
    launched("1 / 0")
    code, _, err = call("extend", "mine", "--replace", arm)
    assert code == 0, err
    now = study.manifest()
    assert {t["id"] for t in now["trials"] if t["arm"] == arm} == first
    assert not first & {t["id"] for t in now["replaced"]}
    assert not any(study.trial(id).cancel_asked() for id in first)
