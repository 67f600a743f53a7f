"""The most frequent n-grams of a stream of tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

__all__ = ["frequent_ngrams"]

DIGIT = 16
"""Bits that are sorted by at a time: up to here numpy's stable sort is a radix sort."""


def frequent_ngrams(tokens: Int64[np.ndarray, "t"], n: int, count: int) -> Int64[np.ndarray, "k n"]:
    """The `count` most frequent n-grams (fewer, where there are no more), the most frequent first.

    Of equally frequent ones that with the smaller tokens comes first. All places of the stream
    count, also those across the end of a document. Time and memory are linear in its length, but
    for a sort of the distinct n-grams by their counts: the places are sorted by their n-grams digit
    by digit, from the last token to the first.
    """
    places = len(tokens) - n + 1
    if places < 1 or count < 1:
        return np.empty((0, n), dtype=np.int64)
    order = np.arange(places)
    bits = max(int(tokens.max()).bit_length(), 1)
    # Small numbers, cut out once: the gathers are most of the time.
    digits = [(tokens >> shift).astype(np.uint16) for shift in range(0, bits, DIGIT)]
    for offset in reversed(range(n)):
        for digit in digits:
            order = order[np.argsort(digit[offset:][order], kind="stable")]
    fresh = np.zeros(places, dtype=bool)
    fresh[0] = True
    for offset in range(n):
        for digit in digits:
            column = digit[offset:][order]
            fresh[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(fresh)
    times = np.diff(np.append(first, places))
    # The n-grams lie in the order of their tokens, which a stable sort keeps among equals.
    best = first[np.argsort(-times, kind="stable")[:count]]
    return tokens[order[best][:, None] + np.arange(n)]
