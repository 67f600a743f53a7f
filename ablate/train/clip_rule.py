"""What a clipping rule is, and what all of them share.

A rule is called once a step with all gradients and their norms, computed once for the log, the
check for divergence and the rule. It never copies a value to the host.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.schema import ClipConfig

__all__ = ["EPSILON", "Clip", "NoClip", "scale_down"]

EPSILON = 1e-6
"""Keeps the coefficient finite at norm 0, as upstream and torch have it."""


@runtime_checkable
class Clip(Protocol):
    """Limits gradients in place. An import path names a class with this interface, say a NoClip."""

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None: ...

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class NoClip:
    """Leaves gradients as they are."""

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None:
        self.config = config
        self.parameters: list[Tensor] = []

    def watch(self, parameters: list[Tensor]) -> None:
        """Given, before the first step, the parameters whose gradients it will be called with."""
        self.parameters = parameters

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        pass

    def limit(self, step: int, value: float) -> float:
        """`value`, higher by `warmup_factor` in the first `warmup_steps` (upstream: one later)."""
        return value * self.config.warmup_factor if step <= self.config.warmup_steps else value

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def scale_down(gradients: list[Tensor], coefficient: Float[Tensor, ""]) -> None:
    """All gradients times min(1, `coefficient`)."""
    coefficient = coefficient.clamp(max=1.0)
    if asking_waits(coefficient) or coefficient < 1:
        torch._foreach_mul_(gradients, coefficient)


def asking_waits(value: Tensor) -> bool:
    """Whether the host would have to wait for this value: of a GPU, which works behind it."""
    return value.device.type != "cpu"
