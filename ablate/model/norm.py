"""Normalisation layers. A new one is a class here (or an import path) and a line in `NORMS`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.autograd.function import once_differentiable

from ablate.config.imports import users_own
from ablate.errors import ConfigError
from ablate.model.config import ModelConfig
from ablate.model.variants import find

__all__ = [
    "NORMS",
    "LayerNorm",
    "LowPrecisionLayerNorm",
    "Norm",
    "RMSNorm",
    "build_norm",
    "spelled_out",
]


def spelled_out(x: Tensor) -> bool:
    """Whether to compute by the plain formula instead of a faster form with its own derivative.

    Under torch.compile, which fuses the formula by itself. And in float64, in which nobody trains
    but tests compare with upstream to 1e-12: upstream rounds to float32 inside norms and rotations
    even then, so a last bit that differs before such a rounding would show as 1e-7 behind it.
    And under vmap (trials that are stacked), which knows no derivatives but torch's own.
    """
    if torch.compiler.is_compiling():  # first: the compiler could not trace what follows
        return True
    return x.dtype == torch.float64 or is_batchedtensor(x)


class Norm(nn.Module):
    """What every norm has: a width, an epsilon, and a scale and shift that may be absent."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, size: int, *, eps: float, affine: bool, bias: bool) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.register_parameter("weight", nn.Parameter(torch.empty(size)) if affine else None)
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(size)) if affine and bias else None
        )

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{self.size}, eps={self.eps}"


class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + eps), scaled and shifted (arXiv 1607.06450)."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)


class LowPrecisionLayerNorm(Norm):
    """LayerNorm computed in autocast's dtype; without autocast the same as LayerNorm."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return F.layer_norm(x, (self.size,), self.weight, self.bias, self.eps)
        low = torch.get_autocast_dtype(kind)
        weight = None if self.weight is None else self.weight.to(low)
        bias = None if self.bias is None else self.bias.to(low)
        with torch.autocast(kind, enabled=False):
            return F.layer_norm(x.to(low), (self.size,), weight, bias, self.eps)


class _Rms(torch.autograd.Function):
    """weight · x / rms(x) with its own derivative: half the time of autograd's fifteen operations.

    With n = x / rms(x) and g the gradient of n:  dx = (g - n · mean(g · n)) / rms(x).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        n = wide * inverse
        ctx.save_for_backward(n, inverse, weight)
        ctx.dtype = x.dtype
        y = n.to(x.dtype)
        return y if weight is None else weight * y

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor | None, None]:
        n, inverse, weight = ctx.saved_tensors
        g, d_weight = grads[0], None
        product = g * n
        if weight is not None:
            if ctx.needs_input_grad[1]:
                d_weight = product.flatten(0, -2).sum(0).to(weight.dtype)
            g = g * weight
            mean = torch.matmul(product, weight.to(product.dtype))[..., None] / n.shape[-1]
        else:
            mean = product.mean(-1, keepdim=True)
        dx = torch.addcmul(g.to(n.dtype), n, mean, value=-1).mul_(inverse)
        return dx.to(ctx.dtype), d_weight, None


class RMSNorm(Norm):
    """x / sqrt(mean(x²) + eps), scaled, and shifted where norms have a bias (arXiv 1910.07467).

    The quotient is taken in float32 and cast back before the scale is applied, as OLMo does.
    """

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if spelled_out(x):
            wide = x.float()
            y = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)
            y = y if self.weight is None else self.weight * y
        else:
            y = _Rms.apply(x, self.weight, self.eps)
        return y if self.bias is None else y + self.bias  # pyright: ignore[reportReturnType]


NORMS: dict[str, type[Norm]] = {
    "default": LayerNorm,
    "low_precision": LowPrecisionLayerNorm,
    "rms": RMSNorm,
}


def build_norm(config: ModelConfig, size: int | None = None, *, affine: bool | None = None) -> Norm:
    """The norm that the configuration names, `d_model` wide unless `size` is given.

    Without a size it is one of the residual stream, which the `norm_...` fields are about.

    Raises:
        ConfigError: a class of the user's own that raises, or does not take (size, *, eps, affine,
            bias).
    """
    kind = find(NORMS, config.layer_norm_type, "model.layer_norm_type")
    stream = size is None
    size = config.d_model if size is None else size
    affine = config.layer_norm_with_affine if affine is None else affine
    try:
        inspect.signature(kind).bind(size, eps=0.0, affine=True, bias=True)
    except TypeError as error:
        reason = f"cannot be built as {kind.__name__}(size, *, eps, affine, bias): {error}"
        remedy = "Take these, and have reset_parameters(), as ablate.model.norm.Norm does"
        raise ConfigError(
            "model.layer_norm_type", config.layer_norm_type, reason, remedy
        ) from error
    with users_own("model.layer_norm_type", config.layer_norm_type):
        if stream and not config.plain_norms:
            from ablate.model.noisy import NoisyNorm

            return NoisyNorm(kind, config, size, affine=affine)
        return kind(size, eps=config.layer_norm_eps, affine=affine, bias=config.norm_bias)
