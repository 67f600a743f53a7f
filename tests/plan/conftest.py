"""Sweeps of a user's own folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.plan import Plan, plan_sweep

TINY = ["model=gpt2", "size=tiny"]


@pytest.fixture
def write_sweep(tmp_path: Path) -> Callable[..., str]:
    """Writes sweeps/NAME.yaml below tmp_path; keywords are the fields of its `sweep:` section."""

    def write(name: str = "mine", top: dict[str, Any] | None = None, **fields: Any) -> str:
        section = {"question": "Which?", "baseline": TINY, **fields}
        (tmp_path / "sweeps").mkdir(exist_ok=True)
        text = "# @package _global_\n" + yaml.safe_dump(
            {**(top or {}), "sweep": section}, sort_keys=False
        )
        (tmp_path / "sweeps" / f"{name}.yaml").write_text(text)
        return name

    return write


@pytest.fixture
def plan(
    tmp_path: Path, write_sweep: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Plan]:
    """The plan of a sweep with these fields; overrides come first."""
    monkeypatch.chdir(tmp_path)

    def make(*overrides: str, **fields: Any) -> Plan:
        return plan_sweep([f"sweep={write_sweep(**fields)}", *overrides], cwd=tmp_path)

    return make


@pytest.fixture
def hundred_arms() -> dict[str, list[str | None]]:
    """Factors of a grid of 120 arms."""
    return {
        "position": [None, *(f"position={p}" for p in ("rope", "alibi", "none", "sinusoidal"))],
        "norm": [None, "norm=rms", "norm=layer_no_affine"],
        "bias": [None, "bias=none"],
        "qk_norm": [None, "qk_norm=on"],
        "activation": [None, "activation=swiglu"],
    }
