"""Normalisation layers. A new one is a class here (or an import path) and a line in `NORMS`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.config import ModelConfig
from ablate.model.variants import find

__all__ = [
    "NORMS",
    "LayerNorm",
    "LowPrecisionLayerNorm",
    "Norm",
    "RMSNorm",
    "build_norm",
    "compute_dtype",
]


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a matrix product with `x` runs: autocast's, or x's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


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


class RMSNorm(Norm):
    """x / sqrt(mean(x²) + eps), scaled, and shifted where norms have a bias (arXiv 1910.07467).

    The quotient is taken in float32 and cast back before the scale is applied, as OLMo does.
    """

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        wide = x.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        if self.weight is not None:
            y = self.weight * y
        return y if self.bias is None else y + self.bias


NORMS: dict[str, type[Norm]] = {
    "default": LayerNorm,
    "low_precision": LowPrecisionLayerNorm,
    "rms": RMSNorm,
}


def build_norm(config: ModelConfig, size: int | None = None, *, affine: bool | None = None) -> Norm:
    """The norm that the configuration names, `d_model` wide unless `size` is given."""
    kind = find(NORMS, config.layer_norm_type, "model.layer_norm_type")
    return kind(
        config.d_model if size is None else size,
        eps=config.layer_norm_eps,
        affine=config.layer_norm_with_affine if affine is None else affine,
        bias=config.norm_bias,
    )
