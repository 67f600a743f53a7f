"""From masks, windows, documents and positions to the `Scope` of each layer, once a pass."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ablate.errors import DataError
from ablate.model.attention import Scope
from ablate.model.bias import as_bias, as_padding, distance, finite, hide, within
from ablate.model.cache import BufferCache
from ablate.model.config import ModelConfig
from ablate.model.flex import Flexible, block_mask
from ablate.model.here import case_here
from ablate.model.kernel_case import Case
from ablate.model.kernels import choose, requested
from ablate.model.linear import compute_dtype
from ablate.model.packed import Packing

__all__ = ["Visibility", "scopes"]

log = logging.getLogger(__name__)


OURS = "ablate.model.position"
"""Where position schemes are made of nothing but their parameters and the length."""
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

    @property
    def is_empty(self) -> bool:
        given = self.attention_mask, self.attention_bias, self.doc_lens
        return all(each is None for each in given)


def scopes(
    config: ModelConfig,
    position: Any,
    cache: BufferCache,
    x: Float[Tensor, "b t d"],
    past: int,
    given: Visibility,
    head_sizes: Sequence[int] | None = None,
    *,
    dropout: float = 0.0,
    softmax: torch.dtype | None = None,
    split: bool = True,
) -> list[Scope]:
    """The scope of each layer, for inputs `x` that follow `past` cached positions.

    Args:
        config: the model's.
        position: its position scheme.
        cache: of tables.
        x: what goes into the lowest block.
        past: cached positions.
        given: masks and documents of this pass.
        head_sizes: of the layers, where they are unequal.
        dropout: of attention, in this pass.
        softmax: the type that some layer's softmax is told (see `protection`).
        split: whether documents may be attended to one by one. Compiled code would be compiled
            again for each layout.
    """
    dtype, ours = compute_dtype(x), type(position).__module__ == OURS
    asked: Hashable = None
    if ours and not past and given.is_empty:  # as in every step of most runs
        asked = (x.shape[:2], x.dtype, x.device, dtype, dropout, softmax, torch.is_grad_enabled())
        if asked in cache.scopes:
            return cache.scopes[asked]
    case = case_here(config, x.device, dtype, x.shape[1], dropout=dropout, softmax=softmax)
    builder = _Builder(config, position, cache, x, past, given, case, split)
    sizes = head_sizes if head_sizes is not None else [None] * config.n_layers
    kinds = [(config.window(layer), size) for layer, size in enumerate(sizes)]
    made = {kind: builder.scope(*kind) for kind in dict.fromkeys(kinds)}
    found = [made[kind] for kind in kinds]
    if asked is not None and not builder.varying_bias:
        cache.scopes[asked] = found
    return found


@functools.cache
def _warn(kernel: str, reason: str) -> None:
    """Once a process."""
    log.warning("attention: %s; %s computes it instead.", reason, kernel)


class _Builder:
    def __init__(
        self,
        config: ModelConfig,
        position: Any,
        cache: BufferCache,
        x: Tensor,
        past: int,
        given: Visibility,
        case: Case,
        split: bool,
    ) -> None:
        self.config, self.position, self.cache = config, position, cache
        self.x, self.given, self.split = x, given, split
        self.ours = type(position).__module__ == OURS
        self.made: dict[Hashable, Any] = {}
        self.dtype = compute_dtype(x)
        self.queries, self.keys = x.shape[1], past + x.shape[1]
        self.masked = given.attention_mask is not None or given.attention_bias is not None
        if past and given.doc_lens is not None:
            raise DataError(
                "doc_lens with past_key_values: documents cannot span a cache. "
                "Run the whole sequence at once, or without doc_lens."
            )
        masked = "a mask" if given.attention_mask is not None else None
        masked = "a bias" if given.attention_bias is not None else masked
        if past and (self.queries > 1 or requested(config)[0] != "flash"):
            masked = masked or "keys from a cache"
        documents = given.doc_lens is not None
        self.case = dataclasses.replace(case, documents=documents, masked=masked)
        if case.bias == "own" and self.position_bias is None:
            self.case = dataclasses.replace(self.case, bias=None)

    def _once(self, key: Hashable, make: Callable[..., Any], *given: Any) -> Any:
        """What layers that differ in the size of their heads alone share."""
        if key not in self.made:
            self.made[key] = make(*given)
        return self.made[key]

    @functools.cached_property
    def position_bias(self) -> Float[Tensor, "h k k"] | None:
        return self.position.bias(self.keys, self.x)

    @functools.cached_property
    def varying_bias(self) -> bool:
        """Whether the position bias may be another in the next pass: a trained one (where no
        gradients are wanted it does not look trained), or one of the user's own scheme.
        """
        trained = next(self.position.parameters(), None) is not None
        return self.position_bias is not None and (trained or not self.ours)

    def _choose(self, near: int | None, head_size: int | None) -> str:
        size = self.case.head_dim if head_size is None else head_size
        case = dataclasses.replace(self.case, window=near is not None, head_dim=size)
        choice = choose(self.config, case)
        if choice.refused:
            _warn(choice.kernel, choice.reason)
        return choice.kernel

    def scope(self, window: int | None, head_size: int | None) -> Scope:
        near = window if window is not None and window < self.keys else None
        own = () if head_size is None else (head_size,)
        backend = self._choose(near, head_size)
        options: dict[str, Any] = {
            "backend": backend,
            "rotation": self.position.rotation(self.keys, window, self.x, *own),
        }
        if backend in ("flash", "varlen", "flex"):
            return Scope(window=near, **options, **self._without_table(backend, near))
        options["documents"] = self.documents
        hides_documents = self.given.doc_lens is not None and self.documents is None
        plain = (
            self.position_bias is None and near is None and not self.masked and not hides_documents
        )
        if plain and self.queries == 1:
            return Scope(causal=False, **options)
        if plain and self.queries == self.keys and backend == "sdpa":
            return Scope(causal=True, **options)
        if self.masked or hides_documents or self.varying_bias:
            bias = self._once(("bias", near), self._assembled, near, hides_documents)
            return Scope(bias=bias, **options)
        return Scope(bias=self._fixed(near, self.dtype), **options)

    # ---- kernels that are told instead of shown a table

    def _without_table(self, backend: str, window: int | None) -> dict[str, Any]:
        if backend != "flex":
            return {"packing": self._once(("packing", backend), self._packing, backend)}
        slopes = self.position.slopes(self.x) if self.case.bias == "alibi" else None
        if self.given.doc_lens is None:
            return {"flexible": Flexible(self._blocks(window), slopes)}
        names, device = self.document_names, self.x.device
        blocks = self._once(("blocks", window), block_mask, self.keys, window, names, device)
        return {"names": names, "flexible": Flexible(blocks, slopes)}

    def _blocks(self, window: int | None) -> Any:
        """Without documents: the same in every pass of this length."""
        device, length = self.x.device, self.keys
        key = ("blocks", window, length, device)
        if key not in self.cache:
            self.cache[key] = (block_mask(length, window, None, device),)
        return self.cache[key][0]

    def _packing(self, backend: str) -> Packing | None:
        lengths, device = self.given.doc_lens, self.x.device
        if lengths is not None:
            longest = max(self.given.max_doc_lens) if self.given.max_doc_lens else self.queries
            return Packing(lengths.to(device), longest)
        if backend == "flash":
            return None
        rows = torch.full((self.x.shape[0],), self.queries, device=device)
        return Packing(rows, self.queries)

    # ---- biases

    def _fixed(self, window: int | None, dtype: torch.dtype) -> Float[Tensor, "1 #h q k"]:
        """Causality, window and position: what no input changes, kept for the next pass."""

        def build(n: int) -> tuple[Tensor]:
            bias = hide(distance(n, self.x.device) < 0)
            bias = (
                bias + self.position.bias(n, self.x)
                if self.position_bias is not None
                else bias[None]
            )
            return (finite(within(bias, window), dtype)[None],)

        key = ("bias", window, dtype, self.x.device)
        table = self.cache.grown(key, self.keys, build)[0]
        return table[:, :, self.keys - self.queries : self.keys, : self.keys]

    def _assembled(self, window: int | None, hides_documents: bool) -> Float[Tensor, "#b #h q k"]:
        """With what this forward pass was given."""
        rows = slice(self.keys - self.queries, self.keys)
        if self.given.attention_bias is not None:
            bias = as_bias(self.given.attention_bias, self.keys)
        elif self.varying_bias:
            bias = hide(distance(self.keys, self.x.device) < 0)[None, None]
        else:
            bias = self._fixed(window, torch.float32)
        if bias.shape[-2] != self.queries:
            bias = bias[:, :, rows]
        if self.position_bias is not None and (
            self.given.attention_bias is not None or self.varying_bias
        ):
            bias = bias + self.position_bias[:, rows]
        if self.given.attention_bias is not None or self.varying_bias:
            bias = within(bias, window)
        if hides_documents:
            name = self.document_names
            bias = bias + hide(name[:, rows, None] != name[:, None, :])[:, None]
        if self.given.attention_mask is not None:
            bias = bias + as_padding(self.given.attention_mask, self.keys)
        return finite(bias, self.dtype)

    # ---- documents

    @functools.cached_property
    def document_names(self) -> Int[Tensor, "b t"]:
        """Which document each position belongs to; what no length covers is one more document."""
        assert self.given.doc_lens is not None
        ends = self.given.doc_lens.cumsum(-1)
        place = torch.arange(self.keys, device=ends.device).expand(ends.shape[0], -1)
        return torch.searchsorted(ends, place.contiguous(), right=True).to(self.x.device)

    @functools.cached_property
    def documents(self) -> list[list[int]] | None:
        """The lengths, where documents are attended to one by one: on a CPU, if nothing interferes.

        Elsewhere the lengths stay on the device, unchecked: reading them would wait for it.
        """
        doc_lens = self.given.doc_lens
        if doc_lens is None or doc_lens.device.type != "cpu":
            return None
        lengths = [[int(n) for n in row if n] for row in doc_lens.tolist()]
        for index, row in enumerate(lengths):
            if sum(row) != self.keys:
                text = (
                    f"doc_lens[{index}] adds up to {sum(row)}, but there are {self.keys} tokens. "
                )
                raise DataError(text + "Count the last, unfinished document too.")
        ours = self.position_bias is None or self.ours
        few = sum(map(len, lengths)) * SHORT_DOCUMENT <= doc_lens.shape[0] * self.keys
        return lengths if ours and few and not self.masked and self.split else None
