"""Attention over a batch laid end to end: the flash-attn package, and torch's own varlen kernel.

Both take queries, keys and values as [tokens, heads, size], and where each document begins.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.errors import ConfigError

__all__ = ["Packing", "flash", "require_flash", "varlen"]


class Packing:
    """Where the documents of the flattened batch begin and end.

    Documents of no tokens, with which `doc_lens` is padded, stay in: both kernels pass over them,
    and leaving them out would wait for the device.
    """

    def __init__(self, lengths: Int[Tensor, "b n"], longest: int) -> None:
        flat = lengths.flatten()
        self.edges: Int[Tensor, "m"] = torch.cat((flat.new_zeros(1), flat.cumsum(0))).int()
        self.longest = longest
        """Or more: it sizes the grid that the kernel is started on."""

    def names(self, rows: int, length: int) -> Int[Tensor, "b t"]:
        """The document of each position, by number."""
        place = torch.arange(rows * length, dtype=torch.int32, device=self.edges.device)
        return torch.searchsorted(self.edges[1:], place, right=True).view(rows, length)


def flash(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b g t c"],
    v: Float[Tensor, "b g t c"],
    *,
    packing: Packing | None,
    window: int | None,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "b h t c"]:
    """By the flash-attn package."""
    package = require_flash()
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options: dict[str, Any] = {
        "dropout_p": dropout,
        "causal": causal,
        "window_size": (-1, -1) if window is None else (window - 1, 0),
        "deterministic": torch.get_deterministic_debug_mode() > 0,
    }
    if packing is None:
        return package.flash_attn_func(q, k, v, **options).transpose(1, 2)
    flat = (x.flatten(0, 1) for x in (q, k, v))
    edges, longest = packing.edges, packing.longest
    y = package.flash_attn_varlen_func(*flat, edges, edges, longest, longest, **options)
    return y.unflatten(0, q.shape[:2]).transpose(1, 2)


def varlen(
    q: Float[Tensor, "b h t c"],
    k: Float[Tensor, "b g t c"],
    v: Float[Tensor, "b g t c"],
    *,
    packing: Packing,
    window: int | None,
    causal: bool,
) -> Float[Tensor, "b h t c"]:
    """By torch.nn.attention.varlen, which has no dropout."""
    from torch.nn.attention import varlen as kernels

    attend: Any = kernels.varlen_attn
    rows, flat = (q.shape[0], q.shape[2]), [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    span = (-1 if window is None else window - 1, 0) if causal else (-1, -1)
    grouped = {} if q.shape[1] == k.shape[1] else {"enable_gqa": True}
    edges, longest = packing.edges, packing.longest
    y = attend(*flat, edges, edges, longest, longest, window_size=span, **grouped)
    return y.unflatten(0, rows).transpose(1, 2)


def require_flash() -> Any:
    """The flash-attn package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import flash_attn
    except ImportError as error:
        reason = f"needs the package flash-attn, which cannot be imported ({error})"
        remedy = "Install the extra `flash` on a machine with CUDA, or set it to false"
        raise ConfigError("model.flash_attention", True, reason, remedy) from error
    return flash_attn
