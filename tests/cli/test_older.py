"""Studies that were frozen before some fields of the configuration were there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ablate.cli.check import check
from ablate.cli.memory_view import memory_line
from ablate.cli.plan_view import plan_view
from ablate.config.compose import Composer
from ablate.config.fingerprint import OFF, YOUNGER, fingerprint
from ablate.launch.freeze import freeze
from ablate.launch.preflight import check_training
from ablate.launch.settings import remember_plan
from ablate.plan import completed, difference, frozen_plan, memory_of, plan_sweep, resolve
from ablate.rundir import StudyDir
from ablate.rundir.configuration import read_config, write_config

Call = Callable[..., tuple[int, str, str]]


def as_of_before(config: dict[str, Any]) -> dict[str, Any]:
    """Without any field that came later, nor sections that are off or made of such fields alone."""
    later = {**YOUNGER, "cluster": ("gpu_memory", "stack", "notify", "max_gpu_hours")}
    older: dict[str, Any] = {}
    for key, value in config.items():
        if key in OFF and value["name"] == OFF[key]:
            continue
        if key in later:
            value = {k: v for k, v in value.items() if k not in later[key]}
        if value != {}:
            older[key] = value
    return older


def test_what_it_needs_and_whether_it_can_be_trained_is_known_as_before() -> None:
    config = resolve(Composer().compose(["size=tiny", "train.device=cpu"]))
    older = as_of_before(config)
    assert "chunk" not in older["loss"]
    assert not older.keys() & {"parallel", "batching", "cache", "evaluate"}
    assert fingerprint(older) == fingerprint(config)
    assert not difference(older, config)
    assert not difference(config, older)
    check_training(older)
    assert memory_of(older) == memory_of(config)


def test_what_a_field_is_where_it_is_absent_is_its_default() -> None:
    """So that one table of defaults says what an older trial was."""
    defaults = completed({})
    for section, fields in YOUNGER.items():
        assert {name: defaults[section][name] for name in fields} == fields
    assert {section: defaults[section]["name"] for section in OFF} == OFF


def make_older(study: StudyDir) -> None:
    for trial in study.trials():
        path = trial.path / "config.yaml"
        write_config(path, as_of_before(read_config(path)))


def test_it_is_shown_extended_launched_and_retried(
    call: Call, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "old.yaml").write_text(
        "# @package _global_\nsweep:\n  question: Which?\n  baseline: []\n"
        "  factors: {position: [position=rope]}\n  seeds: 1\n"
    )
    words = ["sweep=old", *small, "train.steps=2", "cluster=debug"]
    planned = plan_sweep(words)
    study = freeze(planned, shlex.join(["ablate", "launch", *words]))
    remember_plan(study, planned, "ablate launch")
    make_older(study)

    plan = frozen_plan(study)
    assert [list(arm.change) for arm in plan.arms][1] == ["model.rope", "model.position"]
    assert plan_view(plan, 100)
    assert "CPU" in memory_line(plan)
    assert [proof.arm for proof in check(plan)] == [arm.name for arm in plan.arms]
    json.dumps(plan.to_json())
    first, second = study.trials()
    code, _, err = call("extend", "old", "sweep.seeds=2", "--json")
    assert code == 0, err
    third = next(t for t in study.trials() if t.id not in (first.id, second.id))
    code, out, _ = call("diff", f"old/{first.id}", f"old/{third.id}", "--json")
    assert list(json.loads(out)["diff"]) == ["seed"], "no field of today's tells them apart"

    for verb in (
        ["plan", "old", "--json"], ["status", "old"], ["list"], ["prune", "old"],
        ["cancel", "old", "--dry-run"], ["launch", "old", "--dry-run"],
        ["launch", "old", "cluster=slurm", "--dry-run"],
    ):  # fmt: skip
        code, _, err = call(*verb)
        assert code == 0, (verb, err)
    code, _, err = call("launch", "old", "cluster=debug")
    assert code == 0, err
    assert [t.state().status for t in study.trials()] == ["done"] * 4
    first.write_state(first.state().replace(status="failed", outcome="code", reason="boom"))
    code, _, err = call("retry", "old", first.id)
    assert code == 0, err
    assert first.state().status == "done"
    for verb in (
        ["status", "old", "--json"], ["report", "old"], ["spikes", "old"],
        ["logs", "old", first.id],
        ["spikes", "replay", f"old/{first.id}", "--step", "1"], ["prune", "old"],
        ["generate", f"old/{first.id}", "--tokens", "2"], ["extend", "old", "sweep.seeds=3"],
    ):  # fmt: skip
        code, _, err = call(*verb)
        assert code == 0, (verb, err)


def test_another_seed_of_it_is_no_other_arm(call: Call, small: list[str]) -> None:
    assert call("train", *small, "train.steps=1")[0] == 0
    study = StudyDir(Path("runs/train"))
    make_older(study)
    assert call("train", *small, "train.steps=1", "seed=1")[0] == 0
    assert len(study.manifest()["arms"]) == 1
    assert len(study.trials()) == 2
