"""What is inside a sequence: the documents that it is made of, and loops of repeated tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int32, Int64

__all__ = ["document_lengths", "repetitive"]


def document_lengths(
    input_ids: Int64[np.ndarray, "b t"],
    eos_token_id: int,
    lengths: Int64[np.ndarray, "b"] | None = None,
) -> tuple[Int32[np.ndarray, "b d"], list[int]]:
    """Lengths of the documents in each row, padded with zeros on the right, and the longest of
    each row.

    EOS ends a document and belongs to it; what follows the last EOS is a document too (OLMo's
    rule). The padding of a row, from `lengths` on, counts as one document, so that every row sums
    to t.
    """
    b = len(input_ids)
    ends = input_ids == eos_token_id
    if lengths is not None:
        for row, n in zip(ends, lengths, strict=True):
            row[n - 1 :] = False
            row[n - 1] = True
    ends[:, -1] = True
    rows, columns = np.nonzero(ends)
    counts = ends.sum(axis=1)
    starts = np.zeros_like(columns)
    starts[1:] = np.where(rows[1:] == rows[:-1], columns[:-1] + 1, 0)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = np.zeros((b, int(counts.max(initial=0))), dtype=np.int32)
    result[rows, place] = columns + 1 - starts
    return result, [int(n) for n in result.max(axis=1, initial=0)]


def repetitive(
    input_ids: Int64[np.ndarray, "b t"], *, max_period: int = 13, min_repeats: int = 32
) -> Bool[np.ndarray, "b"]:
    """True for rows in which some pattern of 1 to `max_period` tokens stands `min_repeats` times
    in a row.

    OLMo 2's filter (arXiv 2501.00656, section 3.1): such rows were seen to cause loss spikes.
    """
    b, t = input_ids.shape
    found = np.zeros(b, dtype=bool)
    for period in range(1, max_period + 1):
        # A stretch of n equal neighbours at distance `period` is a span of n + period tokens.
        need = period * (min_repeats - 1)
        if t < period + need:
            break
        equal = input_ids[:, period:] == input_ids[:, :-period]
        candidates = np.flatnonzero(~found & (equal.sum(axis=1) >= need))
        if candidates.size:
            found[candidates] = _longest_runs(equal[candidates]) >= need
    return found


def _longest_runs(flags: Bool[np.ndarray, "b n"]) -> Int64[np.ndarray, "b"]:
    """The longest stretch of True in each row."""
    columns = np.arange(1, flags.shape[1] + 1, dtype=np.int64)
    last_false = np.maximum.accumulate(np.where(flags, 0, columns), axis=1)
    return (columns - last_false).max(axis=1)
