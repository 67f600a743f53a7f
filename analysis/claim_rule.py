"""Supported, weaker than claimed, contradicted or undecided: the rule for one claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from ablate.analysis.estimate import Fit
from ablate.analysis.rule import Rule
from ablate.analysis.verdict import seeds_that_decide

__all__ = ["UNTESTABLE", "VERDICTS", "Measured", "conclude", "newcombe", "student"]

UNTESTABLE = "not testable as worded"
VERDICTS = ("supported", "weaker than claimed", "contradicted", "undecided", UNTESTABLE)

_MOST_SEEDS = 1000
_POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The difference of two arms on the scale of the claim (of logarithms where it is relative)."""

    estimate: float
    low: float
    high: float
    equivalent_low: float
    equivalent_high: float
    """The interval of the two one-sided tests."""
    seeds: int
    """The fewer of the two arms'."""
    diverged: tuple[int, int] = (0, 0)
    """Of the claim's arm, and of the one that it is compared with."""
    level: float = 0.05
    fit: Fit | None = None

    def seeds_needed(
        self, claim: Mapping[str, Any], verdict: str, *, lower_is_better: bool
    ) -> int | None:
        """Seeds an arm that would decide with a chance of 80 %; None where unknown, or above
        1,000.

        The estimates are taken for the truth.
        """
        model = self.fit
        if verdict != "undecided" or model is None or not np.isfinite(self.low):
            return None
        if claim["direction"] == "no_worse":
            bound = _harm_bound(claim, lower_is_better=lower_is_better)
            harm = self.estimate if lower_is_better else -self.estimate
            return self._seeds_of_margin(abs(bound - harm), model)
        margin = _margin(claim)
        rule = Rule(smallest_effect=0.0, margin=margin, alpha=self.level)
        return seeds_that_decide(
            self.estimate,
            model.sigma,
            rule,
            seeds=self.seeds,
            arms=len(model.arms),
            comparisons=1,
            critical=float(stats.t.isf(self.level / 2, model.df)),
            df=model.df,
            blocked=model.blocked,
        )

    def _seeds_of_margin(self, distance: float, model: Fit) -> int | None:
        n = np.arange(max(self.seeds + 1, 2), _MOST_SEEDS + 1)
        arms = len(model.arms)
        freedom = (arms - 1) * (n - 1) if model.blocked else arms * (n - 1)
        error = np.maximum(model.sigma * np.sqrt(2 / n), 1e-300)
        power = special.ndtr(distance / error + special.stdtrit(freedom, self.level / 2))
        enough = np.flatnonzero(power >= _POWER)
        return int(n[enough[0]]) if len(enough) else None


def conclude(m: Measured, claim: Mapping[str, Any], *, lower_is_better: bool) -> tuple[str, str]:
    """The verdict and a note (empty where the numbers say it all).

    With the claimed direction as the positive one and S for the claimed size: supported where the
    interval lies above 0 and reaches S; weaker than claimed where it lies above 0 and wholly below
    S; contradicted where it lies below 0, or where the equivalence test holds and it does not lie
    above 0. Of no_worse: supported where the harm's interval lies below the margin, contradicted
    where it lies above.

    Args:
        m: what was measured.
        claim: as the manifest has it.
        lower_is_better: of the metric: which way no_worse would hurt.
    """
    direction = claim["direction"]
    counts = ""
    mine, theirs = m.diverged
    if mine or theirs:
        counts = f"diverged {mine} of {claim['of']}, {theirs} of {claim['against']}"
    better = "lower" if lower_is_better else "higher"
    if mine > theirs:
        # An arm that lost more seeds is worse, whatever the survivors say.
        return ("contradicted" if direction in ("no_worse", better) else "undecided"), counts
    verdict, note = _by_values(m, claim, lower_is_better)
    if theirs > mine and verdict == "contradicted":
        verdict = "undecided"
    return verdict, "; ".join(s for s in (counts, note) if s)


def _by_values(m: Measured, claim: Mapping[str, Any], lower_is_better: bool) -> tuple[str, str]:
    if not np.isfinite(m.estimate):
        return "undecided", "no finished trial of both arms with a seed in common"
    if m.seeds < 2:
        return "undecided", "one seed: no interval"
    if not np.isfinite(m.low):
        return "undecided", "no residual degrees of freedom: no interval"
    if claim["direction"] == "no_worse":
        bound = _harm_bound(claim, lower_is_better=lower_is_better)
        low, high = (m.low, m.high) if lower_is_better else (-m.high, -m.low)
        if high < bound:
            return "supported", "worse, but by less than the margin" if low > 0 else ""
        return ("contradicted" if low > bound else "undecided"), ""
    up = claim["direction"] == "higher"
    low, high = (m.low, m.high) if up else (-m.high, -m.low)
    if low > 0:
        # Rounding must not turn a size of exactly the claimed one into less.
        reaches = high >= _size(claim) * (1 - 1e-9)
        return ("supported" if reaches else "weaker than claimed"), ""
    if high < 0:
        return "contradicted", "the other way round"
    margin = _margin(claim)
    if margin is not None and -margin < m.equivalent_low and m.equivalent_high < margin:
        return "contradicted", "no effect that would matter"
    return "undecided", "falls short of the claimed size" if high < _size(claim) else ""


def _size(claim: Mapping[str, Any]) -> float:
    """How far the claimed change goes in its direction, on the scale of the test."""
    if claim.get("relative") is not None:
        return abs(float(np.log1p(claim["relative"])))
    return abs(float(claim.get("absolute") or 0.0))


def _margin(claim: Mapping[str, Any]) -> float | None:
    margin = claim.get("margin")
    if margin is None:
        return None
    return float(np.log1p(margin)) if claim.get("relative") is not None else float(margin)


def _harm_bound(claim: Mapping[str, Any], *, lower_is_better: bool) -> float:
    """The margin of no_worse as a difference in the direction that hurts."""
    if claim.get("relative") is None:
        return float(claim["absolute"])
    share = float(claim["relative"])
    return float(np.log1p(share) if lower_is_better else -np.log1p(-min(share, 0.999)))


def student(
    model: Fit,
    of: str,
    against: str,
    *,
    level: float,
    seeds: tuple[int, int],
    diverged: tuple[int, int],
) -> Measured:
    """The contrast of two arms, with Student's intervals by the noise pooled over all arms."""
    if min(seeds) == 0:
        nan = float("nan")
        return Measured(estimate=nan, low=nan, high=nan, equivalent_low=nan, equivalent_high=nan,
                        seeds=0, diverged=diverged, level=level, fit=model)  # fmt: skip
    c = model.contrasts([(of, against)])
    d, error = float(c.estimate[0]), float(c.error[0])
    if abs(d) < 1e-12 * max(1.0, float(np.abs(model.effects).max())):
        d = 0.0  # rounding, not an effect
    if model.df <= 0 or min(seeds) < 2:
        error = float("nan")
    wide, narrow = (
        (stats.t.isf(level / 2, model.df), stats.t.isf(level, model.df))
        if model.df > 0
        else (np.nan, np.nan)
    )
    return Measured(
        estimate=d,
        low=d - wide * error,
        high=d + wide * error,
        equivalent_low=d - narrow * error,
        equivalent_high=d + narrow * error,
        seeds=min(seeds),
        diverged=diverged,
        level=level,
        fit=model,
    )


def newcombe(of: ArrayLike, against: ArrayLike, level: float) -> Measured:
    """The difference of two shares, with Newcombe's hybrid score interval (1998, method 10).

    Unlike Student's it is not empty where all trials of an arm went the same way.

    Args:
        of: 0 or 1 for each trial of the claim's arm.
        against: likewise.
        level: of the two-sided interval, 0.05 for 95 %.
    """
    a, b = np.asarray(of, dtype=float), np.asarray(against, dtype=float)
    if not len(a) or not len(b):
        nan = float("nan")
        return Measured(estimate=nan, low=nan, high=nan, equivalent_low=nan, equivalent_high=nan,
                        seeds=0, level=level)  # fmt: skip
    d = float(a.mean() - b.mean())

    def interval(tail: float) -> tuple[float, float]:
        (low_a, high_a), (low_b, high_b) = _wilson(a, tail), _wilson(b, tail)
        down = np.hypot(a.mean() - low_a, high_b - b.mean())
        up = np.hypot(high_a - a.mean(), b.mean() - low_b)
        return d - float(down), d + float(up)

    low, high = interval(level / 2)
    equivalent_low, equivalent_high = interval(level)
    return Measured(
        estimate=d,
        low=low,
        high=high,
        equivalent_low=equivalent_low,
        equivalent_high=equivalent_high,
        seeds=min(len(a), len(b)),
        level=level,
    )


def _wilson(x: np.ndarray, tail: float) -> tuple[float, float]:
    n, p, z = len(x), float(x.mean()), float(stats.norm.isf(tail))
    middle = p + z * z / (2 * n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
