"""Keys and values of known beginnings, computed once and reused by prompts that begin with one.

A beginning starts at position 0, in a prompt as when it was computed, and attention is causal: its
keys and values are those that the prompt would have, whatever follows and however the model places
its positions. They are those of the weights as they were; after an update, build it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from ablate.model.cache import KeyValue

if TYPE_CHECKING:
    from ablate.model.transformer import OLMo, OLMoOutput

__all__ = ["Hit", "Preheated"]

BATCH = 256
"""Beginnings that are computed at a time."""


class Hit(NamedTuple):
    """Which beginning a prompt has."""

    length: int
    """Of it, in tokens."""
    row: int
    """Its number among those of this length."""


class Preheated:
    """A model in eval mode, with the keys and values of some beginnings of prompts."""

    def __init__(self, model: OLMo, beginnings: Iterable[Int64[np.ndarray, "k n"]]) -> None:
        """`beginnings`: tables of tokens, one for each length."""
        self.model = model
        self.tables: dict[int, list[KeyValue]] = {}
        self.hits: dict[tuple[int, ...], Hit] = {}
        for table in beginnings:
            if len(table):
                length = table.shape[1]
                self.tables[length] = self._heat(torch.from_numpy(table).to(model.device))
                rows = enumerate(map(tuple, table.tolist()))
                self.hits |= {tokens: Hit(length, row) for row, tokens in rows}
        self.lengths = sorted(self.tables, reverse=True)

    @torch.no_grad()
    def _heat(self, table: Int[Tensor, "k n"]) -> list[KeyValue]:
        parts = []
        for ids in table.split(BATCH):
            output = self.model(ids, use_cache=True, last_logits_only=True)
            parts.append(output.attn_key_values or [])
        return [
            (torch.cat([k for k, _ in layer]), torch.cat([v for _, v in layer]))
            for layer in zip(*parts, strict=True)
        ]

    @property
    def bytes(self) -> int:
        """Of all keys and values."""
        return sum(k.nbytes + v.nbytes for table in self.tables.values() for k, v in table)

    def match(self, prompt: Sequence[int]) -> Hit | None:
        """The longest beginning, which leaves at least one token of the prompt to be read."""
        for length in self.lengths:
            if length < len(prompt) and (hit := self.hits.get(tuple(prompt[:length]))):
                return hit
        return None

    def past(self, hits: Sequence[Hit]) -> list[KeyValue]:
        """Keys and values of beginnings of one length, [b, g, n, c] in each layer."""
        table = self.tables[hits[0].length]
        if len(hits) == 1:  # a view
            here = slice(hits[0].row, hits[0].row + 1)
            return [(k[here], v[here]) for k, v in table]
        rows = torch.tensor([hit.row for hit in hits], device=table[0][0].device)
        return [(k[rows], v[rows]) for k, v in table]

    @torch.no_grad()
    def read(self, prompt: Sequence[int], *, last: bool = False) -> OLMoOutput:
        """Logits of what is not held (of its last token alone, if so asked), and the cache of all
        of the prompt, with which a continuation goes on.
        """
        hit = self.match(prompt)
        start, past = (hit.length, self.past([hit])) if hit else (0, None)
        ids = torch.tensor([list(prompt[start:])], device=self.model.device)
        return self.model(ids, past_key_values=past, use_cache=True, last_logits_only=last)

    @torch.no_grad()
    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Float[Tensor, "b v"]:
        """Of the token after each prompt of equal length: a pass for each length that is held."""
        groups: dict[int, list[int]] = {}
        hits = [self.match(prompt) for prompt in prompts]
        for i, hit in enumerate(hits):
            groups.setdefault(hit.length if hit else 0, []).append(i)
        parts = []
        for start, members in groups.items():
            ids = torch.tensor([list(prompts[i][start:]) for i in members]).to(self.model.device)
            found = [hit for i in members if (hit := hits[i])]
            past = self.past(found) if found else None
            output = self.model(ids, past_key_values=past, last_logits_only=True)
            parts.append(output.logits[:, -1])
        order = torch.tensor([i for members in groups.values() for i in members])
        return torch.cat(parts)[order.argsort().to(parts[0].device)]
