"""ladder: one change after the other, each on top of all that came before."""

from __future__ import annotations

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
from ablate.errors import PlanError

__all__ = ["ladder"]


def ladder(factors: Factors) -> list[ArmSpec]:
    """1 + the number of levels, in the given order; `+<factor>-<label>` against the previous rung.

    A second level of a factor is a rung of its own, which replaces the first.

    Raises:
        PlanError: for a null level: a rung changes something.
    """
    check_factors("ladder", factors)
    current: dict[str, Level] = baseline_levels(factors)
    arms = [arm(BASELINE, current, None)]
    for factor, levels in factors.items():
        for level in levels:
            if level.is_baseline:
                raise PlanError(
                    f"sweep.factors.{factor} lists the baseline's level, and a rung of a ladder "
                    "must change something. Remove the null."
                )
            current = {**current, factor: level}
            arms.append(arm(f"+{level_name(factor, level)}", current, arms[-1].name))
    return arms
