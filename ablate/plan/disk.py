"""The disk that a study's checkpoints need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.plan.study_plan import Plan

__all__ = ["bytes_of_checkpoint", "bytes_of_study", "disk_line"]

BYTES = 4
"""Of a parameter and of each moment: all are kept in float32."""
MOMENTS = {"adamw": 2, "lion": 1, "muon": 1}
"""Tensors of a parameter's size that the optimiser keeps; 2 where it is not one of ours."""


def bytes_of_checkpoint(parameters: int, optimiser: str) -> int:
    """The parameters and the optimiser's moments (Muon keeps one, but two for embeddings)."""
    return parameters * BYTES * (1 + MOMENTS.get(optimiser, 2))


def bytes_of_study(plan: Plan) -> int:
    """Of all checkpoints that the trials leave behind.

    A running trial has one more for a moment: the new one is whole before an old one goes.
    """
    sizes = {
        arm.name: bytes_of_checkpoint(arm.parameters, arm.config["optim"]["name"])
        * left_behind(arm.config["train"])
        for arm in plan.arms
    }
    return sum(sizes[trial.arm] for trial in plan.trials)


def left_behind(train: Mapping[str, Any]) -> int:
    """Checkpoints that a finished trial keeps."""
    if not train["keep_final"]:
        return 0
    every, keep = train["checkpoint_every"], train["keep_checkpoints"]
    written = -(-train["steps"] // every) if every else 1
    return written if keep < 0 else min(keep, written)


def disk_line(plan: Plan) -> str:
    """For people."""
    largest = max(
        bytes_of_checkpoint(arm.parameters, arm.config["optim"]["name"]) for arm in plan.arms
    )
    return (
        f"Disk for checkpoints: about {_amount(bytes_of_study(plan))} in the end, "
        f"{_amount(largest)} each at most."
    )


def _amount(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
