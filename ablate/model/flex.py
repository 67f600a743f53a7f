"""Attention by FlexAttention: who sees whom, and ALiBi, as functions of positions.

On CUDA they are compiled into one kernel, which passes over the blocks that nobody sees. On a CPU
torch runs them one by one, forward only, which serves to test them.

Which blocks these are is found from their edges, by the same operations compiled or not: about
(t / 128)² numbers a row, in each pass where there are documents and once a length where there are
none. Torch's create_block_mask looks at every pair of positions instead, and where it is not itself
compiled it makes a table t x t of them, a row. The lists are compared with its own on a CPU;
neither their time nor the kernel's has been measured on CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.model.kernels import FLEX_BLOCK as BLOCK

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
    """Causal, within `window`, and within the document that `names` gives of each position.

    The names of a row never fall.
    """
    from torch.nn.attention.flex_attention import BlockMask

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key
        if window is not None:
            seen = seen & (query - key < window)
        if names is not None:
            seen = seen & (names[row, query] == names[row, key])
        return seen

    some, whole = _seen_blocks(length, window, names, device)
    return BlockMask.from_kv_blocks(
        *_listed(some & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(length, length),
    )


def _seen_blocks(
    length: int, window: int | None, names: Int[Tensor, "b t"] | None, device: torch.device
) -> tuple[Bool[Tensor, "#b 1 n n"], Bool[Tensor, "#b 1 n n"]]:
    """Whether a query of a block sees a key of another, and whether each sees all of them.

    A query sees the keys from some lowest one up to itself, and the lowest rises with the query:
    so the first and the last query of a block answer for those between.
    """
    first = torch.arange(0, length, BLOCK, device=device)
    last = (first + BLOCK - 1).clamp_max(length - 1)

    def lowest(queries: Tensor) -> Int[Tensor, "#b n 1"]:
        keys = torch.zeros_like(queries) if window is None else (queries - window + 1).clamp_min(0)
        if names is None:
            return keys[None, :, None]
        starts = torch.searchsorted(names, names[:, queries])
        return torch.maximum(keys, starts)[:, :, None]

    some = (first[:, None] >= first) & (lowest(first) <= last)
    whole = (first[:, None] >= last) & (lowest(last) <= first)
    whole &= (last - first == BLOCK - 1)[:, None]  # torch counts what is beyond the end as unseen
    return some[:, None], whole[:, None]


def _listed(blocks: Bool[Tensor, "#b 1 n n"]) -> tuple[Tensor, Tensor]:
    """How many there are for each block of queries, and their indices before those of the rest."""
    dense = blocks.int()
    return dense.sum(-1, dtype=torch.int32), dense.argsort(
        dim=-1, stable=True, descending=True
    ).int()


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
