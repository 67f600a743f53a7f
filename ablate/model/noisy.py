"""Norms with noise in training, segmented or separate scale and shift, and a gradient clamp.

With n(x) the base norm without its affine part, s the deviation of the noise and e ~ N(0, 1):

    noise after:   y = scale * (n(x) + s e) + shift      (s in units of the normalised value)
    noise before:  y = scale * n(x + s e) + shift        (s in units of x as it is)

The source says before in its text and after in its code. In evaluation there is no noise, and y is
what the base norm computes, bit for bit (with segments, up to rounding). The clamp limits what the
backward pass sends through y, and leaves y as it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.config import ModelConfig
from ablate.model.foundation import in_foundation
from ablate.model.norm import NORMS, Norm

__all__ = ["ClampGradient", "Moment", "NoisyNorm"]


@dataclass(kw_only=True)
class Moment:
    """Where training stands: what the noise is drawn from. One for all norms of a model.

    So a trial that is resumed draws what it would have drawn, and recomputed activations are the
    same. As with dropout, each process of a trial draws its own.
    """

    seed: int = 0
    step: int | None = None
    """None: outside of a trial, noise comes from torch's default generator."""
    steps: int = 1
    """Of the trial: where annealed noise ends."""
    micro_batch: int = 0
    rank: int = 0
    gradient_unit: float = 1.0
    """What one nat of the summed loss is in the backward pass: loss scale / labels of the batch."""

    def generator(self, name: str, device: torch.device) -> torch.Generator | None:
        """That of one norm in one forward pass."""
        if self.step is None:
            return None
        place = f"{self.seed}/{self.step}/{name}/{self.micro_batch}/{self.rank}"
        digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "big") >> 1
        return torch.Generator(device).manual_seed(seed)

    def left(self) -> float:
        """Share of an annealed noise: almost 1 at the first step, 0 at the last."""
        return 1.0 if self.step is None else max(0.0, 1.0 - self.step / self.steps)


class ClampGradient(torch.autograd.Function):
    """y = x; the gradient is clamped, by element or by the norm of each position's vector."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float, by: str) -> Tensor:
        ctx.limit, ctx.by = limit, by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        gradient = grads[0]
        if ctx.by == "value":
            return gradient.clamp(-ctx.limit, ctx.limit), None, None
        size = gradient.float().norm(dim=-1, keepdim=True)
        share = (ctx.limit / size.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1.0)
        return gradient * share.to(gradient.dtype), None, None


class NoisyNorm(Norm):
    """The base norm of the configuration with what the `norm_...` fields add to it."""

    def __init__(self, kind: type[Norm], config: ModelConfig, size: int, *, affine: bool) -> None:
        groups = config.norm_segments or size
        super().__init__(groups, eps=config.layer_norm_eps, affine=affine, bias=config.norm_bias)
        if affine and not config.layer_norm_scale:
            self.register_parameter("weight", None)
        self.size, self.kind, self.config = size, kind, config
        self.repeats = size // groups if affine else 1
        self.bare: nn.Module = kind(size, eps=config.layer_norm_eps, affine=False, bias=False)
        self.compute: Any = kind.forward
        self.noise, self.name, self.moment = config.norm_noise, "", Moment()

    def place(self, name: str, moment: Moment) -> None:
        """Tells the norm its name in the model and when it is. Outside the foundation: no noise."""
        self.name, self.moment = name, moment
        if not in_foundation(name, self.config.foundation_layers):
            self.noise = 0.0

    def deviation(self) -> float:
        """Of the noise, now."""
        if not (self.training and self.noise):
            return 0.0
        annealed = self.config.norm_noise_schedule == "linear"
        return self.noise * (self.moment.left() if annealed else 1.0)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        c, std = self.config, self.deviation()
        if std and c.norm_noise_at == "before":
            x = x + std * self._draw(x).to(x.dtype)
        after = std if c.norm_noise_at == "after" else 0.0
        if self.kind in NORMS.values() and self.repeats == 1 and not after:
            y = self.compute(self, x)
        else:
            y = self.compute(self.bare, x) if self.kind in NORMS.values() else self.bare(x)
            y = self._affine(y + after * self._draw(y).to(y.dtype) if after else y)
        if c.norm_grad_clip is not None and torch.is_grad_enabled():
            limit = c.norm_grad_clip * self.moment.gradient_unit
            y = ClampGradient.apply(y, limit, c.norm_grad_clip_by)
        return y  # pyright: ignore[reportReturnType]

    def _affine(self, y: Tensor) -> Tensor:
        weight, bias = (
            None if p is None else p.repeat_interleave(self.repeats)
            for p in (self.weight, self.bias)
        )
        if y.dtype == torch.float16:  # of an unprotected norm, which is float16 throughout
            weight, bias = (None if p is None else p.half() for p in (weight, bias))
        y = y if weight is None else weight * y
        return y if bias is None else y + bias

    def _draw(self, like: Tensor) -> Tensor:
        generator = self.moment.generator(self.name, like.device)
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=torch.float32)

    def extra_repr(self) -> str:
        c = self.config
        return f"{super().extra_repr()}, noise={self.noise} {c.norm_noise_at}"
