"""one_factor: the baseline, and one change of it at a time."""

from __future__ import annotations

from ablate.design.arm import (
    BASELINE,
    ArmSpec,
    Factors,
    arm,
    baseline_levels,
    changes,
    check_factors,
    level_name,
)

__all__ = ["one_factor"]


def one_factor(factors: Factors) -> list[ArmSpec]:
    """1 + the number of changes; each arm against the baseline."""
    check_factors("one_factor", factors)
    base = baseline_levels(factors)
    arms = [arm(BASELINE, base, None)]
    arms += [
        arm(level_name(factor, level), {**base, factor: level}, BASELINE)
        for factor, levels in factors.items()
        for level in changes(levels)
    ]
    return arms
