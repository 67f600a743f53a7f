"""factorial: all combinations of the factors, each at the baseline's level and at its changes."""

from __future__ import annotations

from ablate.design.arm import ArmSpec, Factors, baseline_level, changes, check_factors
from ablate.design.grid import grid

__all__ = ["factorial"]


def factorial(factors: Factors) -> list[ArmSpec]:
    """The product over factors of 1 + the number of changes (2^k for k factors of one change each).

    Unlike `grid`, the baseline's level need not be listed: main effects and interactions need it.
    """
    check_factors("factorial", factors)
    return grid({f: [baseline_level(levels), *changes(levels)] for f, levels in factors.items()})
