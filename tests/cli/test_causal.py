"""A norm of one's own that reads later tokens: refused with nothing written, or allowed by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ablate.rundir import StudyDir

Call = Callable[..., tuple[int, str, str]]
NORM = "model.layer_norm_type=tests.model.own_modules"
ALLOWED = "train.check_causality=false"


def sweep(*overrides: str) -> None:
    Path("sweeps").mkdir()
    Path("sweeps", "own.yaml").write_text(
        "# @package _global_\nsweep:\n  question: Which?\n  baseline: []\n  seeds: 1\n"
        f"  factors: {{norm: {{own: [{', '.join(overrides)}]}}}}\n"
    )


def test_train_refuses_it(call: Call, small: list[str]) -> None:
    code, _, err = call("train", *small, f"{NORM}:Rolled")
    assert code == 2
    assert "own_modules:Rolled: reads later tokens: " in err
    assert "\n" not in err.strip()
    assert not Path("runs").exists()
    assert call("train", *small, f"{NORM}:Shifted")[0] == 0
    assert call("train", *small, f"{NORM}:Rolled", ALLOWED)[0] == 0
    assert len(StudyDir(Path("runs/train")).trials()) == 2


def test_launch_refuses_it(call: Call, small: list[str]) -> None:
    sweep(f"{NORM}:Rolled")
    for verb in (["plan", "--check"], ["launch"]):
        code, _, err = call(*verb, "sweep=own", *small)
        assert code == 2, verb
        assert "reads later tokens: " in err
        assert "\n" not in err.strip().removeprefix("Note: ").partition("ablate ")[2]
        assert not Path("runs").exists()


def test_a_leak_that_is_allowed_is_launched_and_reported(call: Call, small: list[str]) -> None:
    sweep(f"{NORM}:Rolled", ALLOWED)
    assert call("launch", "sweep=own", *small)[0] == 0
    code, out, err = call("report", "own")
    assert code == 0, err
    assert "norm-own" in out
