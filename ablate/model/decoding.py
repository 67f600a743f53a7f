"""What a search has read so far: the whole key/value cache, one begun beforehand, or bounded ones.

Rows are prompts at first, and beams of prompts from `spread` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ablate.config.schema.cache import CacheConfig
from ablate.errors import ConfigError
from ablate.model.preheat import Preheated
from ablate.model.streaming import Stream

if TYPE_CHECKING:
    from ablate.model.cache import KeyValue
    from ablate.model.transformer import OLMo

__all__ = ["BoundedMemory", "FullMemory", "Memory", "PreheatedMemory", "choose_memory"]


class Memory(Protocol):
    def read(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n v"]:
        """Logits of the token after these; the first call reads the prompts, each later a token."""
        ...

    def spread(self, beams: int) -> None:
        """From one row a prompt to one row a beam."""
        ...

    def reorder(self, rows: Int[Tensor, "n"]) -> None:
        """Row i goes on from what row `rows[i]` has read."""
        ...


class FullMemory:
    """Keys and values of everything; masks and biases are the same for all beams of a prompt."""

    def __init__(self, model: OLMo, mask: Tensor | None = None, bias: Tensor | None = None) -> None:
        self.model, self.mask, self.bias = model, mask, bias
        self.past: list[KeyValue] | None = None

    def read(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n v"]:
        output = self.model(
            ids,
            attention_mask=self.mask,
            attention_bias=self.bias,
            past_key_values=self.past,
            use_cache=True,
            last_logits_only=True,
        )
        self.past = output.attn_key_values
        if self.mask is not None:
            self.mask = torch.cat((self.mask, self.mask.new_ones(self.mask.shape[0], 1)), dim=-1)
        return output.logits[:, -1]

    def spread(self, beams: int) -> None:
        self.past = [
            (k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0))
            for k, v in self.past or []
        ]
        if self.mask is not None:
            self.mask = self.mask.repeat_interleave(beams, 0)
        if self.bias is not None and self.bias.shape[0] > 1:
            self.bias = self.bias.repeat_interleave(beams, 0)

    def reorder(self, rows: Int[Tensor, "n"]) -> None:
        self.past = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.past or []]


class PreheatedMemory(FullMemory):
    """The same, where prompts that begin with something known have their beginnings from there."""

    def __init__(self, heated: Preheated) -> None:
        super().__init__(heated.model)
        self.heated = heated

    def read(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n v"]:
        if self.past is not None:
            return super().read(ids)
        rows = [self.heated.read(prompt, last=True) for prompt in ids.tolist()]
        layers = zip(*(row.attn_key_values or [] for row in rows), strict=True)
        self.past = [
            (torch.cat([k for k, _ in layer]), torch.cat([v for _, v in layer])) for layer in layers
        ]
        return torch.cat([row.logits[:, -1] for row in rows])


class BoundedMemory:
    """A stream a row: each lets go what its own tokens did not attend to."""

    def __init__(self, model: OLMo, config: CacheConfig) -> None:
        self.fresh = Stream(model, config)
        self.streams: list[Stream] = []

    def read(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n v"]:
        rows = ids.split(1)
        if not self.streams:
            self.streams = [self.fresh.fork() for _ in rows]
            read = [s.prompt(row) for s, row in zip(self.streams, rows, strict=True)]
        else:
            read = [s.read(row, last=True) for s, row in zip(self.streams, rows, strict=True)]
        return torch.cat(read)[:, -1]

    def spread(self, beams: int) -> None:
        self.streams = [stream.fork() for stream in self.streams for _ in range(beams)]

    def reorder(self, rows: Int[Tensor, "n"]) -> None:
        self.streams = [self.streams[row].fork() for row in rows.tolist()]


def choose_memory(
    model: OLMo,
    cache: CacheConfig | Preheated | None,
    mask: Shaped[Tensor, "b t"] | None,
    bias: Shaped[Tensor, "..."] | None,
) -> Memory:
    """What `cache` asks for.

    Raises:
        ConfigError: a bounded or preheated cache with a mask or a bias, n-grams that are counted
            but not given, or another model's.
    """
    if cache is None:
        return FullMemory(model, mask, bias)
    heated = isinstance(cache, Preheated)
    given = f"preheated, {len(cache.hits)} beginnings" if heated else cache.name
    if not heated and cache.preheat:
        reason = "is a number of n-grams, and generation needs their keys and values"
        remedy = "Give cache=Preheated(model, [ngrams]) (ablate.model.preheat), or set it to 0"
        raise ConfigError("cache.preheat", cache.preheat, reason, remedy)
    if not heated and cache.name == "none":
        return FullMemory(model, mask, bias)
    if mask is not None or bias is not None:
        name = "attention_mask" if mask is not None else "attention_bias"
        reason = f"cannot be combined with {name}: each prompt is read from its first token on"
        remedy = "Generate prompts of unequal length one by one, without it, or leave the cache out"
        raise ConfigError("cache", given, reason, remedy)
    if not heated:
        return BoundedMemory(model, cache)
    if cache.model is not model:
        reason = "holds keys and values of another model"
        raise ConfigError("cache", given, reason, "Build Preheated from the one that generates")
    return PreheatedMemory(cache)
