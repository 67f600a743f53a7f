"""Validation batches of whose input tokens a share is replaced; the labels are the text's own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Int64

from ablate.data.dataset import Batch, Data
from ablate.data.tokens import TokenStream

__all__ = ["CorruptedStream", "corrupted_validation"]

BLOCK = 1 << 16
"""Tokens that share one draw, so that a stretch is drawn without all that lies before it."""


class CorruptedStream(TokenStream):
    """A stream in which other tokens stand at random places.

    What stands where depends on (seed, share, text) alone: not on the length of windows, on
    batches or processes. A token is replaced by another that occurs in the text, each as likely,
    since one that was never trained on would measure how it was initialised. Ends of documents
    are neither replaced nor drawn.
    """

    def __init__(
        self, stream: TokenStream, share: float, *, seed: int, tokens: int, eos: int | None
    ) -> None:
        """Args:
        stream: what is corrupted.
        share: of the tokens.
        seed: of the draws.
        tokens: so many of the stream are read, and those that occur among them are drawn from.
        eos: the token that ends a document, where it is known.
        """
        super().__init__(stream.files)
        self.stream, self.share, self.seed, self.eos = stream, share, seed, eos
        occurs = np.zeros(stream.largest + 1, dtype=bool)
        for start in range(0, tokens, BLOCK):
            occurs[stream.read(start, min(start + BLOCK, tokens))] = True
        if eos is not None and eos < len(occurs):
            occurs[eos] = False
        self.drawn = np.flatnonzero(occurs)
        self.place = np.cumsum(occurs) - 1

    def read(self, start: int, stop: int) -> Int64[np.ndarray, "n"]:
        first = start // BLOCK
        parts = [self._block(i) for i in range(first, -(-stop // BLOCK))]
        whole = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return whole[start - first * BLOCK : stop - first * BLOCK]

    @functools.lru_cache(maxsize=2)  # noqa: B019 (a stream lives no longer than its validation)
    def _block(self, number: int) -> Int64[np.ndarray, "n"]:
        tokens = self.stream.read(number * BLOCK, min((number + 1) * BLOCK, len(self.stream)))
        draw = np.random.default_rng([self.seed, number])
        chosen, kinds = draw.random(BLOCK)[: len(tokens)] < self.share, len(self.drawn)
        if kinds < 2:
            return tokens
        steps = draw.integers(1, kinds, BLOCK)[: len(tokens)]  # never back to where it began
        if self.eos is not None:
            chosen &= tokens != self.eos
        return np.where(chosen, self.drawn[(self.place[tokens] + steps) % kinds], tokens)


def corrupted_validation(
    data: Data,
    sequence_length: int,
    tokens: int | None = None,
    *,
    batch_size: int = 16,
    share: float,
    seed: int,
) -> Iterator[Batch]:
    """`data.validation` with a `share` of the input tokens replaced.

    Labels, their bytes, and where documents end are those of the text as it is.
    """
    total = len(data.held_out) if tokens is None else min(tokens, len(data.held_out))
    stream = CorruptedStream(data.held_out, share, seed=seed, tokens=total, eos=data.eos_token_id)
    noisy = replace(data, held_out=stream)
    both = (d.validation(sequence_length, tokens, batch_size=batch_size) for d in (data, noisy))
    for clean, other in zip(*both, strict=True):
        yield replace(clean, input_ids=other.input_ids)
