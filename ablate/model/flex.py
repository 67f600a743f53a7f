"""Attention by FlexAttention: who sees whom, and ALiBi, as functions of positions.

On CUDA they are compiled into one kernel, which passes over the blocks that nobody sees. On a CPU
torch runs them one by one, forward only, which serves to test them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Flexible", "block_mask", "flex"]


@dataclass(frozen=True)
class Flexible:
    """What FlexAttention is told besides queries, keys and values."""

    blocks: Any
    """A BlockMask."""
    slopes: Float[Tensor, " h"] | None = None
    """Of ALiBi: what a logit loses per position of distance."""


def block_mask(
    length: int,
    window: int | None,
    names: Int[Tensor, "b t"] | None,
    device: torch.device,
) -> Any:
    """Causal, within `window`, and within the document that `names` gives of each position."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key
        if window is not None:
            seen = seen & (query - key < window)
        if names is not None:
            seen = seen & (names[row, query] == names[row, key])
        return seen

    rows = None if names is None else names.shape[0]
    return create_block_mask(sees, rows, None, length, length, device=str(device))


def flex(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b g t c"],
    v: Float[Tensor, "b g t c"],
    told: Flexible,
) -> Float[Tensor, "b h t c"]:
    slopes = told.slopes

    def sloped(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert slopes is not None
        return score - slopes[head] * (query - key)

    return _kernel(q.device.type)(
        q,
        k,
        v,
        score_mod=None if slopes is None else sloped,
        block_mask=told.blocks,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _kernel(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    if device != "cuda" or torch.compiler.is_compiling():
        return flex_attention  # compiled code takes it in by itself
    return _compiled()


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
