"""From masks, windows, documents and positions to the `Scope` of each layer, once a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ablate.errors import DataError
from ablate.model.attention import Scope, choose_backend
from ablate.model.cache import BufferCache
from ablate.model.config import ModelConfig
from ablate.model.linear import compute_dtype

__all__ = ["Visibility", "scopes"]

LOWEST = torch.finfo(torch.float32).min
"""What hides a key. Finite, so that a row in which every key is hidden has a softmax."""
SHORT_DOCUMENT = 32
"""Documents that are shorter on average are masked, not attended to one by one."""


@dataclass(kw_only=True)
class Visibility:
    """The optional inputs of a forward pass that say which query sees which key."""

    attention_mask: Shaped[Tensor, "b k"] | None = None
    """1 keeps, 0 hides a key from all queries."""
    attention_bias: Shaped[Tensor, "..."] | None = None
    """Replaces the causal mask; [k, k], [b, k, k] or [#b, #h, k, k]. Integer or bool: 1 = sees."""
    doc_lens: Int[Tensor, "b n"] | None = None
    """Lengths of the documents in each row, zero-padded."""
    max_doc_lens: Sequence[int] | None = None
    """The longest document of each row; computed where it is not given."""


def scopes(
    config: ModelConfig,
    position: Any,
    cache: BufferCache,
    x: Float[Tensor, "b t d"],
    past: int,
    given: Visibility,
    head_sizes: Sequence[int] | None = None,
) -> list[Scope]:
    """The scope of each layer, for inputs `x` that follow `past` cached positions.

    `head_sizes` are those of the layers, where they are unequal.
    """
    builder = _Builder(config, position, cache, x, past, given)
    sizes = head_sizes if head_sizes is not None else [None] * config.n_layers
    kinds = [(config.window(layer), size) for layer, size in enumerate(sizes)]
    made = {kind: builder.scope(*kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        position: Any,
        cache: BufferCache,
        x: Tensor,
        past: int,
        given: Visibility,
    ) -> None:
        self.config, self.position, self.cache, self.x, self.given = (
            config,
            position,
            cache,
            x,
            given,
        )
        self.dtype = compute_dtype(x)
        self.queries, self.keys = x.shape[1], past + x.shape[1]
        self.masked = given.attention_mask is not None or given.attention_bias is not None
        self.position_bias = position.bias(self.keys, x)
        self.trained_bias = self.position_bias is not None and self.position_bias.requires_grad
        biased = self.masked or self.position_bias is not None or (past > 0 and self.queries > 1)
        self.backend = choose_backend(config, x, self.dtype, biased=biased)
        self.documents: list[list[int]] | None = None
        if given.doc_lens is not None:
            if past:
                raise DataError(
                    "doc_lens with past_key_values: documents cannot span a cache. "
                    "Run the whole sequence at once, or without doc_lens."
                )
            self.documents = self._splittable(given.doc_lens)

    def scope(self, window: int | None, head_size: int | None) -> Scope:
        near = window if window is not None and window < self.keys else None
        own = () if head_size is None else (head_size,)
        rotation = self.position.rotation(self.keys, window, self.x, *own)
        options: dict[str, Any] = {
            "backend": self.backend,
            "rotation": rotation,
            "documents": self.documents,
        }
        if self.backend == "flash":
            options |= self._flash_documents()
            return Scope(window=near, **options)
        hides_documents = self.given.doc_lens is not None and self.documents is None
        plain = (
            self.position_bias is None and near is None and not self.masked and not hides_documents
        )
        if plain and self.queries == 1:
            return Scope(causal=False, **options)
        if plain and self.queries == self.keys and self.backend == "sdpa":
            return Scope(causal=True, **options)
        if self.masked or hides_documents or self.trained_bias:
            return Scope(bias=self._assembled(near, hides_documents), **options)
        return Scope(bias=self._fixed(near, self.dtype), **options)

    # ---- biases

    def _fixed(self, window: int | None, dtype: torch.dtype) -> Float[Tensor, "1 #h q k"]:
        """Causality, window and position: what no input changes, kept for the next pass."""

        def build(n: int) -> tuple[Tensor]:
            bias = _hide(_distance(n, self.x.device) < 0)
            bias = (
                bias + self.position.bias(n, self.x)
                if self.position_bias is not None
                else bias[None]
            )
            return (_finite(_within(bias, window), dtype)[None],)

        key = ("bias", window, dtype, self.x.device)
        table = self.cache.grown(key, self.keys, build)[0]
        return table[:, :, self.keys - self.queries : self.keys, : self.keys]

    def _assembled(self, window: int | None, hides_documents: bool) -> Float[Tensor, "#b #h q k"]:
        """With what this forward pass was given."""
        rows = slice(self.keys - self.queries, self.keys)
        if self.given.attention_bias is not None:
            bias = _as_bias(self.given.attention_bias, self.keys)
        elif self.trained_bias:
            bias = _hide(_distance(self.keys, self.x.device) < 0)[None, None]
        else:
            bias = self._fixed(window, torch.float32)
        if bias.shape[-2] != self.queries:
            bias = bias[:, :, rows]
        if self.position_bias is not None and (
            self.given.attention_bias is not None or self.trained_bias
        ):
            bias = bias + self.position_bias[:, rows]
        if self.given.attention_bias is not None or self.trained_bias:
            bias = _within(bias, window)
        if hides_documents:
            name = self._document_names()
            bias = bias + _hide(name[:, rows, None] != name[:, None, :])[:, None]
        if self.given.attention_mask is not None:
            bias = bias + _as_padding(self.given.attention_mask, self.keys)
        return _finite(bias, self.dtype)

    # ---- documents

    def _document_names(self) -> Int[Tensor, "b t"]:
        """Which document each position belongs to; what no length covers is one more document."""
        assert self.given.doc_lens is not None
        ends = self.given.doc_lens.cumsum(-1)
        place = torch.arange(self.keys, device=ends.device).expand(ends.shape[0], -1)
        return torch.searchsorted(ends, place.contiguous(), right=True).to(self.x.device)

    def _splittable(self, doc_lens: Tensor) -> list[list[int]] | None:
        """The lengths, where documents are attended to one by one: on a CPU, if nothing interferes.

        Elsewhere the lengths stay on the device, unchecked: reading them would wait for it.
        """
        if doc_lens.device.type != "cpu":
            return None
        lengths = [[int(n) for n in row if n] for row in doc_lens.tolist()]
        for index, row in enumerate(lengths):
            if sum(row) != self.keys:
                text = (
                    f"doc_lens[{index}] adds up to {sum(row)}, but there are {self.keys} tokens. "
                )
                raise DataError(text + "Count the last, unfinished document too.")
        ours = (
            self.position_bias is None or type(self.position).__module__ == "ablate.model.position"
        )
        few = sum(map(len, lengths)) * SHORT_DOCUMENT <= doc_lens.shape[0] * self.keys
        return lengths if ours and few and not self.masked and self.backend != "flash" else None

    def _flash_documents(self) -> dict[str, Any]:
        lengths = self.given.doc_lens
        if lengths is None:
            return {}
        flat = lengths[lengths != 0]
        ends = torch.cat((flat.new_zeros(1), flat.cumsum(0))).to(self.x.device, torch.int32)
        longest = max(self.given.max_doc_lens) if self.given.max_doc_lens else int(lengths.max())
        return {"cumulative": ends, "longest": longest}


def _distance(n: int, device: torch.device) -> Int[Tensor, "n n"]:
    place = torch.arange(n, device=device)
    return place[:, None] - place[None, :]


def _hide(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, LOWEST)


def _within(bias: Float[Tensor, "*h q k"], window: int | None) -> Float[Tensor, "*h q k"]:
    """Hides the keys that lie `window` or more positions back."""
    if window is None:
        return bias
    keys, queries = bias.shape[-1], bias.shape[-2]
    far = _distance(keys, bias.device)[keys - queries :] >= window
    return bias.masked_fill(far, LOWEST)


def _finite(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """In `dtype`, with its lowest number where a sum of two hidings, or the cast, gave -inf."""
    return bias.to(dtype).clamp_min(max(torch.finfo(bias.dtype).min, torch.finfo(dtype).min))


def _as_bias(bias: Tensor, keys: int) -> Float[Tensor, "#b #h k k"]:
    if not bias.is_floating_point():
        # The 1 of a key that is seen stays in, as upstream: softmax does not notice what is added
        # to all keys alike, but the last bits of the logits do.
        bias = torch.where(bias == 0, LOWEST, 1.0)
    if not 2 <= bias.ndim <= 4 or bias.shape[-1] < keys:
        text = f"attention_bias of shape {tuple(bias.shape)}: "
        raise DataError(
            text
            + f"give [k, k], [b, k, k] or [b, h, k, k] with k = {keys}, cached positions included."
        )
    bias = bias[None, None] if bias.ndim == 2 else bias[:, None] if bias.ndim == 3 else bias
    return bias[:, :, :keys, :keys].float()


def _as_padding(mask: Tensor, keys: int) -> Float[Tensor, "b 1 1 k"]:
    if mask.shape[-1] != keys:
        text = f"attention_mask covers {mask.shape[-1]} positions, but there are {keys}"
        raise DataError(text + " (cached ones included). Give it one column for each.")
    return ((1.0 - mask.float()) * LOWEST)[:, None, None, :]
