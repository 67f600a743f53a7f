"""Better, worse, equivalent or undecided: the rule for one arm, and the seeds that would decide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from ablate.analysis.rule import Rule

__all__ = ["VERDICTS", "Evidence", "decide", "seeds_that_decide"]

VERDICTS = ("better", "worse", "equivalent", "undecided", "edge", "baseline")

_MOST_SEEDS = 1000
_POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one arm against its reference."""

    difference: float
    low: float
    high: float
    """The simultaneous interval; NaN where there is none."""
    equivalent_low: float
    equivalent_high: float
    """The interval of the two one-sided tests (90 % at alpha = 0.05)."""
    seeds: int
    reference_seeds: int
    diverged: int
    reference_diverged: int
    edge: str | None = None
    """Whose best learning rate lies at the edge of its bracket."""
    withheld: str | None = None
    """Why there is no verdict, whatever the numbers are."""


def decide(e: Evidence, rule: Rule) -> tuple[str, str]:
    """The verdict, and a note for people (empty where the numbers say it all)."""
    total, reference_total = e.seeds + e.diverged, e.reference_seeds + e.reference_diverged
    counts = f"diverged {e.diverged}/{total}, reference {e.reference_diverged}/{reference_total}"
    if e.withheld:
        return "undecided", e.withheld
    if e.edge:
        return "edge", f"best learning rate of {e.edge} at the edge of its bracket: widen it"
    if e.diverged > e.reference_diverged:
        return "worse", counts
    if e.reference_diverged and not e.reference_seeds and e.seeds and not e.diverged:
        return "better", counts
    verdict, note = _decide_on_values(e, rule)
    if e.diverged < e.reference_diverged and verdict in ("worse", "equivalent"):
        verdict = "undecided"
    if e.diverged or e.reference_diverged:
        note = "; ".join(s for s in (counts, note) if s)
    return verdict, note


def _decide_on_values(e: Evidence, rule: Rule) -> tuple[str, str]:
    if not e.seeds:
        return "undecided", "no finished trial"
    if not e.reference_seeds:
        return "undecided", "the reference has no finished trial"
    if not np.isfinite(e.difference):
        return "undecided", "no seed in common with the reference"
    if min(e.seeds, e.reference_seeds) < 2:
        own = e.seeds < 2
        whose, lost = ("", e.diverged) if own else ("the reference has ", e.reference_diverged)
        return "undecided", f"{whose}one seed{' with a value' if lost else ''}: no interval"
    if not np.isfinite(e.low):
        return "undecided", "no residual degrees of freedom: no interval"
    excludes_zero = e.low > 0 or e.high < 0
    # Rounding in the sixteenth digit must not turn an effect of exactly the smallest size into
    # none.
    if excludes_zero and abs(e.difference) >= rule.smallest_effect * (1 - 1e-9):
        return ("better" if (e.difference < 0) == rule.lower_is_better else "worse"), ""
    if -rule.equivalence < e.equivalent_low and e.equivalent_high < rule.equivalence:
        return "equivalent", "differs, but by less than matters" if excludes_zero else ""
    return "undecided", ""


def seeds_that_decide(
    difference: float,
    sigma: float,
    rule: Rule,
    *,
    seeds: int,
    arms: int,
    comparisons: int,
    critical: float,
    df: int,
    blocked: bool = True,
) -> int | None:
    """Seeds an arm with which a verdict other than undecided has a chance of 80 %, or None above
    1,000.

    It takes the estimated effect and noise for the true ones; an effect at the smallest one that
    matters is never decided.

    Args:
        difference: the estimated effect.
        sigma: residual standard deviation of one trial.
        rule: the decision rule.
        seeds: of each arm so far.
        arms: in the study, each with as many seeds.
        comparisons: in the family.
        critical: value of the family now; its ratio to Bonferroni's is kept.
        df: residual degrees of freedom now.
        blocked: whether the seed is a block.
    """
    n = np.arange(max(seeds + 1, 2), _MOST_SEEDS + 1)
    if not (np.isfinite(sigma) and np.isfinite(difference) and df > 0) or not len(n) or arms < 2:
        return None
    freedom = (arms - 1) * (n - 1) if blocked else arms * (n - 1)
    error = np.maximum(sigma * np.sqrt(2 / n), 1e-300)
    bonferroni = rule.alpha / 2 / max(comparisons, 1)
    ratio = -critical / special.stdtrit(df, bonferroni)
    outside = np.maximum(
        -special.stdtrit(freedom, bonferroni) * ratio * error, rule.smallest_effect
    )
    inside = rule.equivalence + special.stdtrit(freedom, rule.alpha) * error
    z = lambda x: special.ndtr((x - difference) / error)  # noqa: E731
    differs = 1 - z(outside) + z(-outside)
    equal = np.where(inside > 0, z(inside) - z(-inside), 0.0)
    enough = np.flatnonzero(differs + equal >= _POWER)
    return int(n[enough[0]]) if len(enough) else None
