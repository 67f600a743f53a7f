"""Rotary positions (RoPE, arXiv 2104.09864), and their stretching by YaRN (arXiv 2309.00071)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.model.cache import BufferCache
from ablate.model.config import ModelConfig
from ablate.model.norm import spelled_out

__all__ = ["Rotary", "Rotation", "frequencies", "rotate"]


class Rotation(NamedTuple):
    """Tables for positions 0 … t-1; `sin` is negated in its first half, where turning subtracts."""

    cos: Float[Tensor, "t c"]
    sin: Float[Tensor, "t c"]
    wide: bool
    """Rotate in float32, whatever the dtype of queries and keys."""

    def last(self, count: int) -> Rotation:
        return Rotation(self.cos[-count:], self.sin[-count:], self.wide)


class _Turn(torch.autograd.Function):
    """The rotation with its own derivative: turning the gradient back by the same angles.

    It keeps nothing but the tables, and makes no rotated copies: three times as fast as autograd.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0], cos, -sin), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half, wide = x.shape[-1] // 2, x.to(cos.dtype)
    y = wide * cos
    y[..., :half] += wide[..., half:] * sin[..., :half]
    y[..., half:] += wide[..., :half] * sin[..., half:]
    return y.to(x.dtype)


def rotate(x: Float[Tensor, "b h t c"], by: Rotation) -> Float[Tensor, "b h t c"]:
    """Turns each pair (x[i], x[i + c/2]) by the angle of its position and frequency."""
    dtype = torch.float32 if by.wide else x.dtype
    cos, sin = by.cos.to(dtype), by.sin.to(dtype)
    if spelled_out(x):
        wide = x.to(dtype)
        return (wide * cos + torch.roll(wide, x.shape[-1] // 2, -1) * sin).to(x.dtype)
    return _Turn.apply(x, cos, sin)  # pyright: ignore[reportReturnType]


def frequencies(
    config: ModelConfig, *, stretched: bool, device: torch.device, size: int | None = None
) -> Float[Tensor, "half"]:
    """Radians per position of each pair: θ^(-2i/c), blended towards a factor-th of it by YaRN.

    Pairs that turn more than beta_fast times within the original length keep their frequency,
    those that turn less than beta_slow times are slowed by the factor, with a linear ramp between.
    `size` is that of a head, c, where it is not the configuration's.
    """
    c, theta = size or config.head_dim, config.rope_theta
    plain = 1.0 / (theta ** (torch.arange(0, c, 2, dtype=torch.float32, device=device) / c))
    if not stretched:
        return plain
    assert config.yarn_factor is not None

    def pair(turns: float) -> float:
        return (
            c
            * math.log(config.yarn_original_length / (turns * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low = max(math.floor(pair(config.yarn_beta_fast)), 0)
    high = min(math.ceil(pair(config.yarn_beta_slow)), c - 1)
    index = torch.arange(c // 2, dtype=torch.float32, device=device)
    ramp = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / config.yarn_factor * ramp + plain * (1 - ramp)


class Rotary:
    """The tables of a model, by window: YaRN stretches the layers with full attention only."""

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        self.config, self.cache = config, cache

    def tables(
        self, length: int, window: int | None, like: Tensor, size: int | None = None
    ) -> Rotation:
        """Tables for positions 0 … length - 1 of a layer with this window, on `like`'s device."""
        config, device = self.config, like.device
        stretched = config.yarn_factor is not None and window is None

        def build(n: int) -> tuple[Tensor, Tensor]:
            rates = frequencies(config, stretched=stretched, device=device, size=size)
            angles = torch.outer(torch.arange(n, dtype=torch.float32, device=device), rates)
            cos, sin = angles.cos(), angles.sin()
            if stretched:
                # YaRN sharpens attention by raising queries and keys alike.
                attention = 0.1 * math.log(config.yarn_factor or 1.0) + 1.0
                cos, sin = cos * attention, sin * attention
            return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

        cos, sin = self.cache.grown(("rope", stretched, device, size), length, build)
        return Rotation(cos[:length], sin[:length], config.rope_full_precision)
