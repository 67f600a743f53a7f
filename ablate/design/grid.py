"""grid: every combination of the levels as they are listed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ablate.design.arm import (
    BASELINE,
    ArmSpec,
    Factors,
    Level,
    arm,
    baseline_levels,
    check_factors,
    level_name,
)

__all__ = ["combinations", "grid"]


def grid(factors: Factors) -> list[ArmSpec]:
    """The product of the numbers of levels, and the baseline unless it is one of them.

    A factor's null is the baseline's level; without it the factor is changed in every combination.
    The last factor varies fastest. Each arm is compared with the baseline.
    """
    check_factors("grid", factors)
    base = arm(BASELINE, baseline_levels(factors), None)
    return [base, *combinations(factors)]


def combinations(factors: Factors) -> list[ArmSpec]:
    """All combinations but the one without any change."""
    arms = []
    for chosen in itertools.product(*factors.values()):
        levels = dict(zip(factors, chosen, strict=True))
        if not all(level.is_baseline for level in chosen):
            arms.append(arm(combination_name(levels), levels, BASELINE))
    return arms


def combination_name(levels: Mapping[str, Level]) -> str:
    """`<factor>-<label>` of each change, joined by `+`."""
    changed = (level_name(f, level) for f, level in levels.items() if not level.is_baseline)
    return "+".join(changed)
