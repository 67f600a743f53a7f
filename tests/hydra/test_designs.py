"""`hydra/sweeper=ablate`: the command line's sweeps are factors of a design."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from ablate.cli import main
from ablate.cli.multirun_designs import plan_multirun
from ablate.config.fingerprint import fingerprint
from ablate.config.hydra_door import compose_with_hydra
from ablate.design import DESIGNS
from ablate.errors import ConfigError, PlanError
from ablate.plan import Plan, plan_sweep, resolve
from ablate.rundir import StudyDir

FACTORS = ["position=choice(rope)", "qk_norm=choice('on')", "model.norm_after=choice(true)"]


def plan(*lines: str) -> tuple[Plan, list[list[str]]]:
    return plan_multirun(OverridesParser.create().parse_overrides(list(lines)), "study")


@pytest.mark.parametrize("design", ["grid", "one_factor", "leave_one_out", "factorial", "ladder"])
def test_every_design_makes_the_same_arms_as_in_a_sweep(
    design: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert design in DESIGNS
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/own.yaml").write_text(
        "# @package _global_\nsweep:\n  question: What do they do?\n"
        f"  design: {design}\n  baseline: [size=tiny]\n"
        "  factors: {position: [position=rope], qk_norm: ['qk_norm=\"on\"'],\n"
        "    norm_after: [model.norm_after=true]}\n  seeds: [3, 4]\n"
    )
    monkeypatch.chdir(tmp_path)
    made, jobs = plan(f"design={design}", "size=tiny", "seed=3,4", *FACTORS)
    written = plan_sweep(["sweep=own", "study=study"])
    assert [a.diff for a in made.arms] == [a.diff for a in written.arms]
    assert [a.reference for a in made.arms] == [a.reference for a in written.arms]
    assert [t.fingerprint for t in made.trials] == [t.fingerprint for t in written.trials]
    assert len(jobs) == len(made.trials)


def test_hydra_composes_every_job_to_the_very_configuration_of_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where matching resized the arm, a budget set the steps, a bracket the rate."""
    monkeypatch.chdir(tmp_path)
    made, jobs = plan("sweep=hello", "sweep.lr=[1e-3,2e-3]", "sweep.seeds=1", "train.batch_size=2")
    assert any(arm.resized for arm in made.arms)
    assert len(jobs) == len(made.trials) == 14
    for trial, job in zip(made.trials, jobs, strict=True):
        assert fingerprint(resolve(compose_with_hydra(job))) == trial.fingerprint


def test_seeds_and_learning_rates_are_tried_by_every_arm_and_are_no_factors() -> None:
    made, jobs = plan("size=tiny", "position=rope,alibi", "seed=range(0,3)", "optim.lr=1e-3,2e-3")
    assert [a.name for a in made.arms] == ["baseline", "position-rope", "position-alibi"]
    assert made.rates == [1e-3, 2e-3]
    assert len(jobs) == 3 * 3 * 2
    assert {t.seed for t in made.trials} == {0, 1, 2}


def test_factors_on_the_command_line_join_those_of_the_sweep() -> None:
    made, _ = plan("sweep=hello", "kv_heads=choice(mqa)", "sweep.seeds=1", "sweep.match=none")
    assert made.arms[-1].name == "+kv_heads-mqa"
    assert made.design == "ladder"


def test_a_glob_names_the_options_of_its_group() -> None:
    made, _ = plan("size=tiny", "position=glob(rope*)")
    assert {"position-rope", "position-rope_500k"} <= {a.name for a in made.arms}


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["optim.weight_decay=interval(0,1)"], "endlessly"),
        (["sweep=hello,positions"], "cannot itself be swept"),
        (["design=grid,ladder", "position=rope,alibi"], "cannot itself be swept"),
        (["seed=a,b", "position=rope,alibi"], "is no number"),
    ],
)
def test_what_is_no_level_is_refused(lines: list[str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        plan(*lines)


def test_an_inert_factor_is_refused_before_anything_is_written(
    call: Callable[..., tuple[int, str, str]], small: list[str]
) -> None:
    with pytest.raises(PlanError):
        plan("size=tiny", "model.rope_theta=1000,2000")
    code, _, err = call(*small, "hydra/sweeper=ablate", "model.rope_theta=1000,2000")
    assert code == 2
    assert "no effect" in err
    assert not Path("runs").exists()


def test_the_sweep_of_a_multirun_is_the_study_that_launch_makes(
    call: Callable[..., tuple[int, str, str]],
    small: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Launch afterwards finds nothing to do; status and report read it like any other."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/two.yaml").write_text(
        "# @package _global_\nsweep:\n  question: Does it help?\n  baseline: [position=learned]\n"
        "  factors: {position: [position=rope]}\n  seeds: 2\n  budget: {steps: 3}\n"
    )
    words = [w for w in small if "steps" not in w]
    code, _, err = call(*words, "hydra/sweeper=ablate", "sweep=two", "hydra/launcher=local")
    assert code == 0, err
    study = StudyDir(Path("runs/two"))
    assert study.manifest()["design"] == "one_factor"
    assert [t.state().status for t in study.trials()] == ["done"] * 4
    assert {t.config()["train"]["steps"] for t in study.trials()} == {3}
    assert main(["launch", *words, "sweep=two", "--dry-run"]) == 0
    assert "0 of 4 trials would run" in capsys.readouterr().out
    assert main(["report", "two", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["arms"]) == 2
