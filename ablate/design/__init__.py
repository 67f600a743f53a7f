"""Designs: rules that turn factors into arms; pure functions, looked up in DESIGNS.

| design | arms | each is compared with |
|---|---|---|
| one_factor | the baseline and one change at a time | the baseline |
| leave_one_out | the baseline, everything on, everything but one | everything on |
| ladder | one change after the other | the previous rung |
| grid | all combinations of the levels that are listed | the baseline |
| factorial | all combinations, the baseline's levels included | the baseline |

A design of your own: `sweep.design=my_package.designs:mine`, a function of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable

from ablate.design.arm import BASELINE, ArmSpec, Factors, Level, slug
from ablate.design.factorial import factorial
from ablate.design.grid import grid
from ablate.design.ladder import ladder
from ablate.design.leave_one_out import leave_one_out
from ablate.design.one_factor import one_factor

__all__ = ["BASELINE", "DESIGNS", "ArmSpec", "Design", "Factors", "Level", "slug"]

Design = Callable[[Factors], list[ArmSpec]]

DESIGNS: dict[str, Design] = {
    "grid": grid,
    "one_factor": one_factor,
    "leave_one_out": leave_one_out,
    "factorial": factorial,
    "ladder": ladder,
}
