"""`ablate diff` says what differs, in configuration, data, code and environment, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablate.rundir import StudyDir, write_json

Call = Callable[..., tuple[int, str, str]]


def write(name: str, config: dict[str, Any], commit: str, data: str, python: str) -> None:
    study = StudyDir(Path("runs") / name)
    study.write_manifest(
        {
            "schema": 1,
            "code": {"version": "0.1", "commit": commit},
            "environment": {"python": python, "platform": "Linux"},
            "trials": [{"id": "x-s0", "arm": "x", "seed": 0}],
        }
    )
    trial = study.trial("x-s0")
    trial.create(config, 10)
    write_json(trial.summary_path, {"data_fingerprint": data, "device": "cpu", "tokens": 100})


def test_it_names_what_differs_and_only_that(call: Call) -> None:
    write("a", {"seed": 0, "model": {"rope": False}}, "abc", "d1", "3.11")
    write("b", {"seed": 0, "model": {"rope": True}}, "def", "d2", "3.12")
    code, out, _ = call("diff", "a/x-s0", "b/x-s0", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["diff"] == {"model.rope": [False, True]}
    assert found["data"] == {"data_fingerprint": ["d1", "d2"]}
    assert found["code"] == {"commit": ["abc", "def"]}
    assert found["environment"] == {"python": ["3.11", "3.12"]}
    assert "commit" in call("diff", "a/x-s0", "b/x-s0")[1]
    same = json.loads(call("diff", "a/x-s0", "a/x-s0", "--json")[1])
    assert not any(same[part] for part in ("diff", "data", "code", "environment"))


def test_two_seeds_of_an_arm_differ_in_the_seed(call: Call) -> None:
    write("a", {"seed": 0, "model": {"rope": False}}, "abc", "d1", "3.11")
    write("b", {"seed": 1, "model": {"rope": False}}, "abc", "d1", "3.11")
    found = json.loads(call("diff", "a/x-s0", "b/x-s0", "--json")[1])
    assert found["diff"] == {"seed": [0, 1]}
