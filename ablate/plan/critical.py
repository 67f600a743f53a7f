"""The |t| that a verdict needs, before anything has run.

| correction | critical value |
|---|---|
| holm | t at a / (2 m): the first of m steps, at which one effect among nulls is tested |
| dunnett | of max abs(t) over all comparisons, exact for a forest of them |

Every arm is compared with one reference, so comparisons are the edges of a forest (a star around
the baseline, the chain of a ladder, ...). With equally many seeds each t is the difference of two
means over a common spread, and the probability that no edge is longer than w is an integral from
the leaves down.
"""

from __future__ import annotations

import functools
import math

__all__ = ["Forest", "critical", "spread", "star"]

Forest = tuple[int, ...]
"""For each arm the place of its reference among the arms, -1 without: a ladder is (-1, 0, 1)."""

_NODES = 128
_EDGES, _LONGEST = 800, 16.0
_GRID, _REACH = 501, 8.5


def star(comparisons: int) -> Forest:
    """All against the baseline."""
    return (-1, *(0,) * comparisons)


@functools.lru_cache(maxsize=1024)
def critical(forest: Forest, df: int, alpha: float, correction: str) -> float:
    """For a familywise two-sided level alpha; `df` at least 1."""
    from scipy import special

    m = sum(reference >= 0 for reference in forest)
    if m <= 1:
        return float(special.stdtrit(df, 1 - alpha / 2))
    bonferroni = float(special.stdtrit(df, 1 - alpha / 2 / m))
    if correction == "holm":
        return bonferroni
    low, high = float(special.stdtrit(df, 1 - alpha / 2)), bonferroni
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, forest, df) > alpha else (low, middle)
    return high


@functools.lru_cache(maxsize=1024)
def spread(df: int):  # two arrays; numpy is not imported for a plan without noise
    """Values of sqrt(chi^2 / df) and their probabilities, by Gauss-Legendre over the quantile."""
    import numpy as np
    from scipy import special

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.sqrt(2 * special.gammaincinv(df / 2, (nodes + 1) / 2) / df), weights / 2


def _tail(q: float, forest: Forest, df: int) -> float:
    """P(max |T| > q)."""
    import numpy as np

    values, probabilities = spread(df)
    width, within = _within(forest)
    return float(1 - probabilities @ np.interp(q * values, width, within))


@functools.lru_cache(maxsize=64)
def _within(forest: Forest):
    """Widths w, and P(|Z| <= w on every edge) for normal Z with the forest's correlations."""
    import numpy as np
    from scipy import special

    width = np.linspace(0, _LONGEST, _EDGES)
    x = np.linspace(-_REACH, _REACH, _GRID)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    # Z is a difference of two means over sqrt(2): with one end at x the other lies in x -+ reach.
    reach = math.sqrt(2) * width[:, None]
    leaf = special.ndtr(x + reach) - special.ndtr(x - reach)
    below: dict[int, list] = {}
    result = np.ones(_EDGES)
    for arm in sorted(range(len(forest)), key=lambda a: -_depth(forest, a)):
        children = below.pop(arm, [])
        if forest[arm] < 0:
            result = result * np.trapezoid(math.prod(children) * density, x, axis=-1)
            continue
        inside = leaf if not children else _inside(math.prod(children) * density, x, reach)
        below.setdefault(forest[arm], []).append(inside)
    return width, np.clip(result, 0, 1)


def _depth(forest: Forest, arm: int) -> int:
    depth = 0
    while forest[arm] >= 0 and depth <= len(forest):
        arm, depth = forest[arm], depth + 1
    return depth


def _inside(values, x, reach):
    """The integral of `values`, a row a width, over x -+ reach."""
    import numpy as np

    step = x[1] - x[0]
    sums = np.cumsum((values[:, 1:] + values[:, :-1]) / 2, axis=1) * step
    sums = np.concatenate([np.zeros((len(values), 1)), sums], axis=1)
    upper, lower = (
        np.stack([np.interp(ends, x, row) for ends, row in zip(x + s * reach, sums, strict=True)])
        for s in (1, -1)
    )
    return upper - lower
