"""What a sweep can learn: the smallest effect that it detects in four studies out of five.

An arm's difference from its reference is a mean over n seeds, paired by seed. With the residual
standard deviation s of an arm + seed block model, pooled over A arms (df = (A - 1)(n - 1)), its
standard error is se = s sqrt(2 / n). The two-sided t test at level a rejects where |t| > c, c being
the 1 - a/2 quantile of Student's t. For a true difference d, t follows the noncentral t with
noncentrality d / se, so

    power(d) = P(T(df, d / se) > c) + P(T(df, d / se) < -c)

and the smallest detectable effect solves power(d) = 0.8. The level is Holm's worst case (and a
bound for Dunnett): alpha / m for the m comparisons of the sweep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["POWER", "Noise", "detectable_effect", "seeds_needed"]

POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Residual standard deviation of one trial, in units of the metric, and where it is from."""

    sd: float | None
    df: int
    source: str
    """The studies it was read off, or why there is none."""


def detectable_effect(
    sd: float, *, arms: int, seeds: int, alpha: float, comparisons: int
) -> float | None:
    """The smallest true difference found with probability 0.8; None with one seed: no residual.

    Args:
        sd: residual standard deviation of a trial, paired by seed.
        arms: arms of the sweep, the baseline included; they pool the residual.
        seeds: seeds of each arm.
        alpha: familywise level, two-sided.
        comparisons: arms that are compared with a reference.
    """
    df = (arms - 1) * (seeds - 1)
    if df < 1:
        return None
    return _noncentrality(df, alpha / max(1, comparisons)) * sd * math.sqrt(2 / seeds)


def seeds_needed(
    effect: float, sd: float, *, arms: int, alpha: float, comparisons: int
) -> int | None:
    """The fewest seeds whose detectable effect is at most `effect`; None above 1,000."""
    for seeds in range(2, 1001):
        found = detectable_effect(sd, arms=arms, seeds=seeds, alpha=alpha, comparisons=comparisons)
        if found is not None and found <= effect:
            return seeds
    return None


def _noncentrality(df: int, alpha: float) -> float:
    """The noncentrality at which the two-sided t test of level `alpha` has the power POWER."""
    from scipy import special  # here, because a plan without a noise estimate does not need it

    critical = special.stdtrit(df, 1 - alpha / 2)
    low, high = 0.0, 1.0

    def power(nc: float) -> float:
        return 1 - special.nctdtr(df, nc, critical) + special.nctdtr(df, nc, -critical)

    while power(high) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) < POWER else (low, middle)
    return high
