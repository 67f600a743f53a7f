"""Clipping rules whose limit follows the gradients or the weights, not a fixed number."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.schema import ClipConfig
from ablate.train.clip_rule import EPSILON, NoClip, scale_down

__all__ = ["AgcClip", "PercentileClip", "PercentileHistoryClip", "ZClip"]

FIRST = 16
"""Norms from which a percentile is taken; before, `max_norm` limits."""
ZCLIP_FIRST = 25
"""Norms from which ZClip takes its first mean and variance, as in its paper."""


class PercentileClip(NoClip):
    """Global norm to the `percentile` of this step's largest absolute gradients, one a tensor.

    As published. A largest element is never larger than its tensor's norm, and that never larger
    than the global norm, so this clips in every step, to a norm that falls with the number of
    elements: it fixes the gradient's scale instead of cutting off what is unusual.
    """

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        maxima = torch.stack(torch._foreach_norm(gradients, math.inf)).float()
        limit = torch.quantile(maxima, self.config.percentile / 100)
        total = torch.linalg.vector_norm(norms)
        scale_down(gradients, self.limit(step, 1.0) * limit / (total + EPSILON))


class PercentileHistoryClip(NoClip):
    """Global norm to the `percentile` of the last `history` global norms (cf. arXiv 2007.14469).

    The norms are those before clipping, of earlier steps: an outlier cannot raise its own limit.
    """

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None:
        super().__init__(config, names, betas)
        self.norms: Tensor | None = None
        self.seen = 0

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        total, size = torch.linalg.vector_norm(norms), self.config.history
        past = total.new_zeros(size) if self.norms is None else self.norms.to(total.device)
        limit = torch.full_like(total, self.config.max_norm)
        if self.seen >= min(FIRST, size):
            limit = torch.quantile(past[: min(self.seen, size)], self.config.percentile / 100)
        scale_down(gradients, self.limit(step, 1.0) * limit / (total + EPSILON))
        past[self.seen % size] = total
        self.norms, self.seen = past, self.seen + 1

    def state_dict(self) -> dict[str, Any]:
        return {"norms": None if self.norms is None else self.norms.clone(), "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        norms = state.get("norms")
        self.norms = None if norms is None else norms.clone()
        self.seen = state.get("seen", 0)


class AgcClip(NoClip):
    """Each unit's gradient to `agc_ratio` times the norm of its weights (arXiv 2102.06171).

    A unit is a row of a matrix (an output, or a token of an embedding), or a whole vector. Weights
    count as at least `agc_floor`, so that what starts at zero can leave it. The paper leaves the
    last layer alone; here it is often the embedding too, and is treated like all else.
    """

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        weights = [p.detach() for p in self.parameters if p.grad is not None]
        ratio = self.limit(step, self.config.agc_ratio)
        for weight, gradient in zip(weights, gradients, strict=True):
            allowed = ratio * _unit_norms(weight).clamp(min=self.config.agc_floor)
            share = (allowed / (_unit_norms(gradient) + EPSILON**2)).clamp(max=1.0)
            gradient.mul_(share.to(gradient.dtype))


class ZClip(NoClip):
    """Global norms over mean + z std are cut to mean + z²/score · std (ZClip, arXiv 2504.02507).

    Mean and variance are exponential averages (`z_decay`) of the norms as clipped, from the first
    25 on; `max_norm` limits those. A score is how many std a norm lies above the mean; the higher
    it is, the lower it is cut.
    """

    def __init__(self, config: ClipConfig, names: list[str], betas: tuple[float, ...]) -> None:
        super().__init__(config, names, betas)
        self.first: list[Tensor] = []
        self.mean: Tensor | None = None
        self.variance: Tensor | None = None

    def __call__(self, step: int, gradients: list[Tensor], norms: Float[Tensor, " n"]) -> None:
        total = torch.linalg.vector_norm(norms)
        if self.mean is None or self.variance is None:
            scale_down(gradients, self.limit(step, self.config.max_norm) / (total + EPSILON))
            self.first.append(total)
            if len(self.first) == ZCLIP_FIRST:
                known = torch.stack([x.to(total.device) for x in self.first])
                self.mean, self.variance, self.first = known.mean(), known.var(correction=0), []
            return
        mean, variance = self.mean.to(total.device), self.variance.to(total.device)
        std, most = variance.sqrt(), self.limit(step, self.config.z_limit)
        score = (total - mean) / (std + EPSILON)
        high = score > most
        kept = torch.where(high, mean + most**2 / score.clamp(min=EPSILON) * std, total)
        scale_down(gradients, torch.where(high, kept / (total + EPSILON), torch.ones_like(total)))
        self.mean = torch.lerp(kept, mean, self.config.z_decay)
        self.variance = torch.lerp((kept - self.mean).square(), variance, self.config.z_decay)

    def state_dict(self) -> dict[str, Any]:
        return {"first": list(self.first), "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = list(state.get("first", []))
        self.mean, self.variance = state.get("mean"), state.get("variance")


def _unit_norms(x: Tensor) -> Float[Tensor, "#n #m"]:
    """In float32, of the rows of a matrix, or of the whole of anything flatter."""
    wide = x.float()
    return wide.norm() if wide.ndim < 2 else wide.flatten(1).norm(dim=1)[:, None]
