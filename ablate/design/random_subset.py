"""random: a sample of the factorial, for a first look at more factors than it can be run for."""

from __future__ import annotations

import math
import random
from typing import Any

from ablate.design.arm import (
    BASELINE,
    ArmSpec,
    Factors,
    arm,
    baseline_level,
    baseline_levels,
    changes,
    check_factors,
)
from ablate.design.grid import combination_name
from ablate.errors import ConfigError

__all__ = ["random_info", "random_subset"]


def random_subset(factors: Factors, *, arms: int = 8, draw_seed: int = 0) -> list[ArmSpec]:
    """The baseline and `arms` distinct combinations, drawn uniformly without replacement.

    Raises:
        ConfigError: for more arms than there are combinations.
    """
    check_factors("random", factors)
    levels = {f: [baseline_level(given), *changes(given)] for f, given in factors.items()}
    total = math.prod(len(row) for row in levels.values())
    if not 1 <= arms < total:
        reason = f"must lie between 1 and {total - 1}, the combinations besides the baseline"
        raise ConfigError("sweep.arms", arms, reason, "Use design=factorial for all of them")
    made = [arm(BASELINE, baseline_levels(factors), None)]
    for number in sorted(random.Random(draw_seed).sample(range(1, total), arms)):
        chosen, rest = {}, number
        for factor, row in reversed(levels.items()):
            rest, index = divmod(rest, len(row))
            chosen[factor] = row[index]
        chosen = {factor: chosen[factor] for factor in levels}
        made.append(arm(combination_name(chosen), chosen, BASELINE))
    return made


def random_info(factors: Factors, *, arms: int = 8, draw_seed: int = 0) -> dict[str, Any]:
    total = math.prod(1 + len(changes(levels)) for levels in factors.values())
    return {"kind": "random", "arms": arms, "combinations": total, "draw_seed": draw_seed}
