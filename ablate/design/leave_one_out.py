"""leave_one_out: everything on, and everything but one."""

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
from ablate.errors import PlanError

__all__ = ["FULL", "leave_one_out"]

FULL = "full"
"""The arm with every factor changed."""


def leave_one_out(factors: Factors) -> list[ArmSpec]:
    """2 + the number of factors.

    The baseline, `full` against it, and `without-<factor>-<label>` against `full`.

    Raises:
        PlanError: for fewer than two factors, or a factor with more than one change.
    """
    check_factors("leave_one_out", factors)
    if len(factors) < 2:
        raise PlanError(
            f"design=leave_one_out needs two factors or more, not only {next(iter(factors))!r}: "
            "leaving out the only one gives the baseline again. Use design=one_factor."
        )
    for factor, levels in factors.items():
        if len(changes(levels)) > 1:
            raise PlanError(
                "design=leave_one_out takes one change for each factor, and "
                f"sweep.factors.{factor} has {len(changes(levels))}. Keep one, or use "
                "design=grid."
            )
    base = baseline_levels(factors)
    full = {factor: changes(levels)[0] for factor, levels in factors.items()}
    arms = [arm(BASELINE, base, None), arm(FULL, full, BASELINE)]
    arms += [
        arm(f"without-{level_name(factor, level)}", {**full, factor: base[factor]}, FULL)
        for factor, level in full.items()
    ]
    return arms
