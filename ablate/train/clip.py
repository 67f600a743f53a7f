"""Gradient clipping: four rules, and the global norm that is logged before any of them acts.

A rule is called once a step with all gradients and their norms, computed once for the log, the
check for divergence and the rule. It never copies a value to the host.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.imports import is_import_path, load_object, users_own
from ablate.config.schema import ClipConfig

__all__ = ["CLIPS", "Clip", "NoClip", "build_clip", "gradient_norms"]

EPSILON = 1e-6
"""Keeps the coefficient finite at norm 0, as upstream and torch have it."""


def gradient_norms(gradients: list[Tensor]) -> Float[Tensor, " n"]:
    """The 2-norm of each gradient (or whatever tensors these are), in float32.

    A CPU adds one square after the other, which in float32 loses 6e-4 of a million values of one
    size, as Lion's updates are, and more of more. So there the sums are taken in float64; GPUs add
    in trees, and not all of them have float64.
    """
    sums = torch.float64 if gradients[0].device.type == "cpu" else torch.float32
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=sums)).float()


@runtime_checkable
class Clip(Protocol):
    """Limits gradients in place. An import path names a class with this interface, say a NoClip."""

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None: ...

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def build_clip(config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> Clip:
    """The rule that `config` names, for parameters `names` in the order of the gradients."""
    cls = (
        load_object("clip.name", config.name) if is_import_path(config.name) else CLIPS[config.name]
    )
    with users_own("clip.name", config.name):
        return cls(config, names, betas)


class NoClip:
    """Leaves gradients as they are."""

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None:
        self.config = config

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        pass

    def limit(self, step: int, value: float) -> float:
        """`value`, higher by `warmup_factor` in the first `warmup_steps` (upstream: one later)."""
        return value * self.config.warmup_factor if step <= self.config.warmup_steps else value

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class NormClip(NoClip):
    """All gradients times min(1, max_norm / (global norm + 1e-6))."""

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        total = torch.linalg.vector_norm(norms)
        coefficient = (self.limit(step, self.config.max_norm) / (total + EPSILON)).clamp(max=1.0)
        if coefficient.device.type != "cpu" or coefficient < 1:  # asking a GPU would wait for it
            torch._foreach_mul_(gradients, coefficient)


class RatioClip(NoClip):
    """Each gradient g to max_ratio times the running mean of its own clipped norms.

    The mean of a tensor starts at its first norm and moves by 1 - max(beta1, beta2). Upstream
    keeps it only from step 2 on, so that the untypical first step leaves no trace; so do we.
    """

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None:
        super().__init__(config, names, betas)
        self.names, self.weight = names, 1 - max(betas)
        self.mean: Tensor | None = None

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        mean = norms if self.mean is None else self.mean
        coefficients = (self.limit(step, self.config.max_ratio) * mean / (norms + EPSILON)).clamp(
            max=1.0
        )
        torch._foreach_mul_(gradients, list(coefficients.unbind()))
        if step > 1:
            self.mean = torch.lerp(mean, norms * coefficients, self.weight)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.mean is None else {"names": self.names, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state.get("mean")


class ValueClip(NoClip):
    """Every element to plus or minus max_value."""

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        limit = self.limit(step, self.config.max_value)
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)


CLIPS: dict[str, type[NoClip]] = {
    "none": NoClip,
    "norm": NormClip,
    "ratio": RatioClip,
    "value": ValueClip,
}
