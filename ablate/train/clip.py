"""Gradient clipping: the rules by name, and the norms that are logged before any of them acts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.imports import is_import_path, load_object, users_own
from ablate.config.schema import ClipConfig
from ablate.train.clip_adaptive import AgcClip, PercentileClip, PercentileHistoryClip, ZClip
from ablate.train.clip_rule import EPSILON, Clip, NoClip, scale_down

__all__ = ["CLIPS", "Clip", "NoClip", "build_clip", "gradient_norms"]


def gradient_norms(gradients: list[Tensor]) -> Float[Tensor, " n"]:
    """The 2-norm of each gradient (or whatever tensors these are), in float32.

    A CPU adds one square after the other, which in float32 loses 6e-4 of a million values of one
    size, as Lion's updates are, and more of more. So there the sums are taken in float64; GPUs add
    in trees, and not all of them have float64.
    """
    sums = torch.float64 if gradients[0].device.type == "cpu" else torch.float32
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=sums)).float()


def build_clip(
    config: ClipConfig,
    names: list[str],
    betas: tuple[float, ...],
    parameters: Sequence[Tensor] = (),
) -> Clip:
    """The rule that `config` names, for parameters `names` in the order of the gradients.

    Args:
        config: of the rule.
        names: of the parameters.
        betas: of the optimiser.
        parameters: themselves, for a rule that measures gradients by them.
    """
    cls = (
        load_object("clip.name", config.name) if is_import_path(config.name) else CLIPS[config.name]
    )
    with users_own("clip.name", config.name):
        rule: Any = cls(config, names, betas)
        if hasattr(rule, "watch"):
            rule.watch(list(parameters))
        return rule


class NormClip(NoClip):
    """All gradients times min(1, max_norm / (global norm + 1e-6))."""

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        total = torch.linalg.vector_norm(norms)
        scale_down(gradients, self.limit(step, self.config.max_norm) / (total + EPSILON))


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
        mean = norms if self.mean is None else self.mean.to(norms.device)
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
    "percentile": PercentileClip,
    "percentile_history": PercentileHistoryClip,
    "agc": AgcClip,
    "zclip": ZClip,
}
