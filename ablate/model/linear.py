"""Linear layers, and the one product that they and the tied unembedding are made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

__all__ = [
    "Linear",
    "Unembedding",
    "compute_dtype",
    "has_low_precision_products",
    "linear",
    "multiply",
]


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a matrix product with `x` runs: autocast's, or x's own."""
    if not torch._C._is_any_autocast_enabled():  # a fifth of the time of asking for this device
        return x.dtype
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Linear(nn.Linear):
    """torch's own, by `multiply`; its values are drawn by `init`, not by itself."""

    def reset_parameters(self) -> None:
        """Nothing. (skip_init draws on `meta`, for which torch imports its compiler.)"""

    def forward(self, input: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        return multiply(input, self.weight, self.bias)


def linear(inputs: int, outputs: int, *, bias: bool) -> Linear:
    """A Linear whose values are still to be drawn: torch's own would be thrown away."""
    return Linear(inputs, outputs, bias=bias)


def multiply(
    x: Float[Tensor, "... inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
) -> Float[Tensor, "... outputs"]:
    """The product x Wᵀ + b, in autocast's type where that is on.

    A CPU without instructions for bfloat16 or float16 multiplies them one by one in torch, ten to
    forty times slower than float32. There the operands are rounded to the low type, multiplied as
    float32, and the result is rounded: what such instructions do, sums in float32 included. The
    gradients pass the same roundings.
    """
    low = compute_dtype(x)
    if low not in LOW_PRODUCTS or x.device.type != "cpu" or has_low_precision_products(low):
        return F.linear(x, weight, bias)
    with torch.autocast("cpu", enabled=False):
        wide = [None if t is None else t.to(low).float() for t in (x, weight, bias)]
        return F.linear(*wide).to(low)  # pyright: ignore[reportArgumentType]


class Unembedding(NamedTuple):
    """What makes logits of the final hidden states."""

    weight: Float[Tensor, "v d"]
    bias: Float[Tensor, " v"] | None
    scale: float
    """A factor on the logits; 1 leaves them untouched."""

    def logits(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... v"]:
        y = multiply(x, self.weight, self.bias)
        return y if self.scale == 1 else y * self.scale


LOW_PRODUCTS = {
    torch.bfloat16: bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    torch.float16: bool(torch.ops.mkldnn._is_mkldnn_fp16_supported()),
}
"""Asked once: compiled code is to hold the answer, not the question."""


def has_low_precision_products(low: torch.dtype) -> bool:
    """Whether this CPU (or oneDNN on it) multiplies this type with instructions of its own."""
    return LOW_PRODUCTS[low]
