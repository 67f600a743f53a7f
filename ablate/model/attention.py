"""Attention of queries to keys: five kernels for one function (the choice is in `kernels`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ablate.model.flex import Flexible, flex
from ablate.model.packed import Packing, flash, varlen
from ablate.model.rotary import Rotation

__all__ = ["Scope", "attend", "multiplies_bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What the queries of one layer see. The same for all layers with the same window."""

    backend: str
    """math, sdpa, flash, varlen or flex."""
    bias: Float[Tensor, "#b #h q k"] | None = None
    """Added to the logits; contains everything that hides a key. None: see `causal`."""
    causal: bool = True
    """Without a bias: query i sees the keys up to i, or (false) all of them."""
    rotation: Rotation | None = None
    window: int | None = None
    """For flash, varlen and flex, which take no bias."""
    documents: list[list[int]] | None = None
    """Lengths of the documents of each row, attended to one by one (sdpa and math on a CPU)."""
    names: Int[Tensor, "b t"] | None = None
    """The document of each position, where there are some, for flex."""
    packing: Packing | None = None
    """For flash and varlen."""
    flexible: Flexible | None = None
    """For flex."""


def attend(
    q: Float[Tensor, "b h q c"],
    k: Float[Tensor, "b g k c"],
    v: Float[Tensor, "b g k c"],
    scope: Scope,
    dropout: float = 0.0,
    softmax: torch.dtype | None = None,
) -> Float[Tensor, "b h q c"]:
    """softmax(q·kᵀ/√c + bias)·v; head h reads key/value head h // (heads / key heads).

    `softmax` is the type of the logits and of their softmax; None: as the kernel has it.
    """
    if softmax is not None:
        return _attend_in(softmax, q, k, v, scope, dropout)
    if scope.backend == "flash":
        options = {"packing": scope.packing, "window": scope.window, "causal": scope.causal}
        return flash(q, k, v, **options, dropout=dropout)
    if scope.backend == "varlen":
        assert scope.packing is not None
        return varlen(q, k, v, packing=scope.packing, window=scope.window, causal=scope.causal)
    if scope.backend == "flex":
        assert scope.flexible is not None
        return flex(q, k, v, scope.flexible)
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
    kernel = plain if scope.backend == "math" else sdpa
    if scope.documents is None:
        return kernel(q, k, v, scope.bias, scope.causal, dropout)
    return _by_document(kernel, q, k, v, scope, dropout)


def _attend_in(
    dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor, scope: Scope, dropout: float
) -> Float[Tensor, "b h q c"]:
    """Fused kernels on a GPU keep logits and softmax in float32; all else is told the type."""
    kind, given = q.device.type, v.dtype
    if dtype == torch.float32 and kind != "cpu" and scope.backend != "math":
        return attend(q, k, v, scope, dropout)
    backend = scope.backend if dtype == torch.float32 else "math"
    bias = None if scope.bias is None else scope.bias.to(dtype)
    told = dataclasses.replace(scope, backend=backend, bias=bias)
    with torch.autocast(kind, enabled=False):
        return attend(q.to(dtype), k.to(dtype), v.to(dtype), told, dropout).to(given)


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Float[Tensor, "b h q c"]:
    """Torch's fused kernel; which implementation is left to torch."""
    if (
        q.dtype in (torch.bfloat16, torch.float16)
        and q.device.type == "cpu"
        and not multiplies_bfloat16()
    ):
        # Without bfloat16 instructions torch's kernel is three to five times slower than float32's.
        wide = F.scaled_dot_product_attention(
            q.float(),
            k.float(),
            v.float(),
            attn_mask=None if bias is None else bias.float(),
            dropout_p=dropout,
            is_causal=causal and bias is None,
        )
        return wide.to(q.dtype)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=causal and bias is None
    )


def plain(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Float[Tensor, "b h q c"]:
    """The definition, spelled out; the softmax is taken in the dtype of the logits."""
    logits = _product(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    if bias is not None:
        logits = logits + bias
    elif causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    weights = torch.softmax(logits, dim=-1).to(v.dtype)
    return _product(F.dropout(weights, dropout) if dropout else weights, v)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In float32, and rounded, where a CPU has no float16 instructions (as `linear.multiply`)."""
    if a.dtype == torch.float16 and a.device.type == "cpu":
        return torch.matmul(a.float(), b.float()).half()
    return torch.matmul(a, b)


def _by_document(
    kernel: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, scope: Scope, dropout: float
) -> Tensor:
    """Each document by itself: a half or less of the work of a mask over the whole row.

    The bias (window, ALiBi) depends on distances only, so a document may use its first rows.
    """
    rows = []
    for row, lengths in enumerate(scope.documents or []):
        start = 0
        for length in lengths:
            part = (slice(row, row + 1), slice(None), slice(start, start + length))
            bias = None if scope.bias is None else scope.bias[:, :, :length, :length]
            rows.append(kernel(q[part], k[part], v[part], bias, scope.causal, dropout))
            start += length
    return torch.cat(rows, dim=2).unflatten(2, (q.shape[0], q.shape[2])).squeeze(0).transpose(0, 1)


BFLOAT16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
"""Asked once: compiled code is to hold the answer, not the question."""


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16."""
    return BFLOAT16
