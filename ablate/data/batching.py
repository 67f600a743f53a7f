"""Batches of whole documents: packed into rows, padded, or bucketed by length under a budget.

Each is a pure function of (data, seed, step), as the batches of the plain stream are: an epoch
takes every document once, in an order that (seed, epoch) names, and nothing is stored between
steps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from ablate.config.schema.batching import BatchingConfig
from ablate.data.order import permute, sequence_indices
from ablate.data.packing import pack
from ablate.errors import DataError

if TYPE_CHECKING:
    from ablate.data.tokens import TokenStream

__all__ = ["Layout", "Rows", "layout_of"]

CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """What the rows of one batch are made of."""

    pieces: list[list[int]]
    """Of each row, the pieces in it, by number."""
    width: int
    indices: Int64[np.ndarray, "b"]
    """The document of each row, or (packed) the row's number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """The documents of a training split, as one way of batching cuts them."""

    name: str
    starts: Int64[np.ndarray, "n"]
    """Of each piece, in the whole stream."""
    lengths: Int64[np.ndarray, "n"]
    documents: Int64[np.ndarray, "n"]
    """Which document a piece is of, counted from 0."""
    sequence_length: int
    bucket: float
    packed: list[list[int]]
    """Of packed: the pieces of each row."""
    truncated_documents: int
    truncated_tokens: int
    """What the cap cut off, once an epoch."""
    tokens: int
    """Of all documents, uncut."""

    @property
    def truncated(self) -> float:
        """Share of the tokens that are never seen."""
        return self.truncated_tokens / max(self.tokens, 1)

    @functools.cached_property
    def _buckets(self) -> Int64[np.ndarray, "n"]:
        return np.floor(np.log(self.lengths) / np.log(self.bucket) + 1e-9).astype(np.int64)

    @functools.lru_cache(maxsize=4)  # noqa: B019 (a layout lives as long as its data)
    def _cuts(self, budget: int) -> list[tuple[int, int]]:
        """Of dynamic: where the batches begin and end among the pieces, in order of their bucket.

        The same in every epoch, for it depends on the lengths alone.
        """
        names, counts = np.unique(self._buckets, return_counts=True)
        cuts, at = [], 0
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            longest = int(self.lengths[self._buckets == name].max())
            rows = max(1, budget // longest)
            cuts += [(at + i, at + min(i + rows, count)) for i in range(0, count, rows)]
            at += count
        return cuts

    @functools.lru_cache(maxsize=2)  # noqa: B019 (a layout lives as long as its data)
    def _epoch(self, seed: int, epoch: int) -> Int64[np.ndarray, "n"]:
        """Of dynamic: the pieces, bucket after bucket, in each in an order of this epoch's own."""
        n = len(self.lengths)
        order = permute(np.arange(n, dtype=np.int64), n, seed, epoch)
        return order[np.argsort(self._buckets[order], kind="stable")]

    def rows(self, step: int, *, seed: int, batch_size: int) -> Rows:
        """Of the batch at `step`, counted from 1; its budget is batch_size full sequences."""
        if self.name == "dynamic":
            cuts = self._cuts(batch_size * self.sequence_length)
            epoch, at = divmod(step - 1, len(cuts))
            # A key of its own: which batch comes next says nothing of which document is in it.
            place = permute(np.array([at], dtype=np.int64), len(cuts), seed, -1 - epoch)
            start, stop = cuts[int(place[0])]
            chosen = self._epoch(seed, epoch)[start:stop]
        else:
            count = len(self.packed) if self.name == "packed" else len(self.lengths)
            chosen = sequence_indices(step, sequences=count, seed=seed, batch_size=batch_size)
        if self.name == "packed":
            pieces = [self.packed[i] for i in chosen.tolist()]
            return Rows(pieces=pieces, width=self.sequence_length, indices=chosen)
        width = int(self.lengths[chosen].max())
        indices = self.documents[chosen]
        return Rows(pieces=[[i] for i in chosen.tolist()], width=width, indices=indices)


def layout_of(
    stream: TokenStream,
    config: BatchingConfig,
    *,
    eos_token_id: int | None,
    sequence_length: int,
    name: str = "",
) -> Layout:
    """Reads where documents end, once, and cuts them.

    A document of a single token has nothing to predict and is left out. Packed cuts long documents
    into pieces, of which nothing is lost; padded and dynamic cut them off.

    Raises:
        DataError: where no document ends, or it is not known which token ends one.
    """
    if eos_token_id is None:
        raise DataError(
            f"batching={config.name}: it is not known which token ends a document of data {name}. "
            "Set model.eos_token_id, or batching=concat."
        )
    starts, lengths = _documents(stream, eos_token_id)
    documents = np.flatnonzero(lengths >= 2)
    if not len(documents):
        raise DataError(
            f"batching={config.name}: data {name} has no document of two tokens or more. Use "
            "batching=concat."
        )
    starts, lengths = starts[documents], lengths[documents]
    total, packed = int(lengths.sum()), []
    cut = np.minimum(lengths, _cap(lengths, config, sequence_length))
    lost = lengths - cut
    if config.name == "packed":
        starts, lengths, owners = _pieces(starts, lengths, sequence_length)
        cut, documents = lengths, documents[owners]
        packed, lost = pack(lengths, sequence_length), np.zeros(1, dtype=np.int64)
    return Layout(
        name=config.name,
        starts=starts,
        lengths=cut,
        documents=documents,
        sequence_length=sequence_length,
        bucket=config.bucket,
        packed=packed,
        truncated_documents=int(np.count_nonzero(lost)),
        truncated_tokens=int(lost.sum()),
        tokens=total,
    )


def _cap(lengths: Int64[np.ndarray, "n"], config: BatchingConfig, longest: int) -> int:
    if config.name != "dynamic" or config.cap is None:
        return longest
    return min(longest, max(2, int(config.cap * lengths.mean())))


def _documents(
    stream: TokenStream, eos: int
) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """Start and length of each; EOS belongs to the one that it ends, and so does a file's end."""
    ends, offset = [], 0
    for file in stream.files:
        tokens = file.tokens()
        for at in range(0, len(tokens), CHUNK):
            found = np.flatnonzero(tokens[at : at + CHUNK] == eos)
            ends.append(found.astype(np.int64) + (offset + at + 1))
        offset += len(tokens)
        ends.append(np.array([offset], dtype=np.int64))
    stops = np.unique(np.concatenate(ends))
    starts = np.concatenate([np.zeros(1, dtype=np.int64), stops[:-1]])
    return starts, stops - starts


def _pieces(
    starts: Int64[np.ndarray, "n"], lengths: Int64[np.ndarray, "n"], longest: int
) -> tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
    """Stretches of at most `longest` tokens, and the document of each."""
    count = -(-lengths // longest)
    owner = np.repeat(np.arange(len(lengths)), count)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    size = np.minimum(lengths[owner] - number * longest, longest)
    keep = size >= 2
    return (starts[owner] + number * longest)[keep], size[keep], owner[keep]
