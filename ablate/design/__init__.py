"""Designs: rules that turn factors into arms; pure functions, looked up in DESIGNS.

| design | arms | each is compared with |
|---|---|---|
| one_factor | the baseline and one change at a time | the baseline |
| leave_one_out | the baseline, everything on, everything but one | everything on |
| ladder | one change after the other, in one or several orders | the previous rung |
| grid | all combinations of the levels that are listed | the baseline |
| factorial | all combinations, the baseline's levels included | the baseline |
| fractional | a two-level fraction of them, of resolution 3 to 5 | the baseline |
| random | a sample of all combinations | the baseline |
| sequential | one change at a time, on top of what was adopted | the adopted baseline |

A design of your own: `sweep.design=my_package.designs:mine`, a function of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ablate.design.arm import BASELINE, ArmSpec, Factors, Level, slug
from ablate.design.factorial import factorial
from ablate.design.fractional import fractional, fractional_info
from ablate.design.grid import grid
from ablate.design.ladder import ladder, ladder_info
from ablate.design.leave_one_out import leave_one_out
from ablate.design.one_factor import one_factor
from ablate.design.random_subset import random_info, random_subset
from ablate.design.sequential import sequential

__all__ = [
    "BASELINE",
    "CROSSED",
    "DESIGNS",
    "INFO",
    "ArmSpec",
    "Design",
    "Factors",
    "Level",
    "slug",
]

Design = Callable[..., list[ArmSpec]]
"""Factors to arms; keyword arguments are fields of the sweep that this design alone reads."""

DESIGNS: dict[str, Design] = {
    "grid": grid,
    "one_factor": one_factor,
    "leave_one_out": leave_one_out,
    "factorial": factorial,
    "fractional": fractional,
    "ladder": ladder,
    "random": random_subset,
    "sequential": sequential,
}

CROSSED = ("factorial", "fractional")
"""Designs that cross all factors in balance, so that a main effect is a mean over all trials."""

INFO: dict[str, Callable[..., dict[str, Any]]] = {
    "fractional": fractional_info,
    "ladder": ladder_info,
    "random": random_info,
}
"""What else the manifest holds of a design (`design_info`), by the same arguments."""
