"""Order statistics of small windows in plain Python: for 16 to 128 values faster than NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

__all__ = ["LARGEST", "MAD_TO_SIGMA", "mad", "mean", "median", "middle", "midmean", "quantum"]

MAD_TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution in units of its median absolute deviation."""


LARGEST = 2.0**500
"""No loss is as large (float32 ends at 2^128): such a value counts as one that is not finite, for
squares and sums of differences would overflow.
"""


def middle(ordered: Sequence[float]) -> float:
    """The median of values that are sorted already."""
    n = len(ordered)
    half = n >> 1
    return ordered[half] if n & 1 else (ordered[half - 1] + ordered[half]) * 0.5


def median(values: Iterable[float]) -> float:
    return middle(sorted(values))


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half: nearly as robust as the median, and less noisy."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    half = ordered[quarter : len(ordered) - quarter]
    return mean(half)


def mean(values: Sequence[float]) -> float:
    """The mean as first value + mean difference from it: a shift of the values shifts it exactly.

    Added from left to right, whatever `sum` does (it compensates from Python 3.12 on).
    """
    low, total = values[0], 0.0
    for v in values:
        total += v - low
    return low + total / len(values)


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median; not scaled."""
    ordered = sorted(values)
    m, half = middle(ordered), len(ordered) >> 1
    # Of values in order the deviations fall, then rise: two runs, which `sort` merely merges.
    deviations = [m - v for v in ordered[:half]]
    deviations += [v - m for v in ordered[half:]]
    deviations.sort()
    return middle(deviations)


def quantum(values: Sequence[float]) -> float:
    """The step of quantised values (bfloat16 logs): the smallest distance of two distinct ones.

    0 where more than half of the values are distinct, so that they are not quantised.
    """
    distinct = set(values)
    if len(distinct) < 2 or 2 * len(distinct) > len(values):
        return 0.0
    return min(b - a for a, b in pairwise(sorted(distinct)))
