"""sequential: one change at a time on top of what was adopted before; one round is one study.

The first round is `one_factor`. Its winner becomes the baseline of the next round, a study of its
own with its own rule and family of comparisons (`sweep.baseline: [STUDY:ARM]`, or
`ablate extend STUDY --adopt ARM`), and the lineage names every baseline that was adopted.
"""

from __future__ import annotations

from ablate.design.arm import ArmSpec, Factors, check_factors
from ablate.design.one_factor import one_factor

__all__ = ["sequential"]


def sequential(factors: Factors) -> list[ArmSpec]:
    """1 + the number of changes; each arm against the adopted baseline."""
    check_factors("sequential", factors)
    return one_factor(factors)
