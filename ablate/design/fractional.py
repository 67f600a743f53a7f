"""fractional: a two-level fraction of the factorial, chosen by its resolution.

| resolution | main effects are confounded with | two-way interactions with |
|---|---|---|
| 3 | two-way interactions | main effects, each other |
| 4 | three-way interactions | each other |
| 5 | four-way interactions | three-way interactions |

The columns come from pydoe (`fracfact_by_res`: the fewest runs for so many factors at that
resolution); its fraction is turned to the one that holds the baseline, every factor at its own
level. A design that needs all combinations anyway is the factorial.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from ablate.design.arm import (
    BASELINE,
    ArmSpec,
    Factors,
    arm,
    baseline_level,
    changes,
    check_factors,
)
from ablate.design.grid import combination_name
from ablate.errors import ConfigError, PlanError

if TYPE_CHECKING:
    import numpy as np  # no other design needs it, and a plan is to answer at once
    from jaxtyping import Int8

__all__ = ["aliases", "fractional", "fractional_info", "fractional_table"]

RESOLUTIONS = (3, 4, 5)
MOST_FACTORS = 26


def fractional(factors: Factors, *, resolution: int = 4) -> list[ArmSpec]:
    """2^(k - p) arms for k factors; each level of a factor, and each pair of levels, equally often.

    Raises:
        PlanError: for a factor with more than one change, or fewer than three factors.
        ConfigError: for a resolution other than 3, 4 and 5.
    """
    check_factors("fractional", factors)
    for factor, levels in factors.items():
        if len(changes(levels)) > 1:
            raise PlanError(
                "design=fractional has two levels for each factor, the baseline's and one change, "
                f"and sweep.factors.{factor} has {len(changes(levels))} changes. Keep one, or use "
                "design=factorial."
            )
    if not 3 <= len(factors) <= MOST_FACTORS:
        raise PlanError(
            f"design=fractional takes 3 to {MOST_FACTORS} factors, and the sweep has "
            f"{len(factors)}. Use design=factorial."
        )
    pairs = {f: (baseline_level(levels), changes(levels)[0]) for f, levels in factors.items()}
    arms = []
    for row in fractional_table(len(factors), resolution).tolist():
        levels = {f: pair[on] for (f, pair), on in zip(pairs.items(), row, strict=True)}
        name = combination_name(levels) or BASELINE
        arms.append(arm(name, levels, BASELINE if any(row) else None))
    return arms


@functools.lru_cache(maxsize=64)
def fractional_table(factors: int, resolution: int) -> Int8[np.ndarray, "runs factors"]:
    """0 for the baseline's level and 1 for the change; the first row is the baseline."""
    if resolution not in RESOLUTIONS:
        reason = "must be 3, 4 or 5"
        raise ConfigError("sweep.resolution", resolution, reason, "Use design=factorial for more")
    import numpy as np
    from pydoe import fracfact_by_res  # imports half of scipy

    signs = fracfact_by_res(factors, resolution)
    # A word of even length multiplies the baseline's -1s to +1: the other half has the baseline.
    on = (signs * -signs[0] > 0).astype(np.int8)
    return on[np.lexsort(on.T[::-1])]


def fractional_info(factors: Factors, *, resolution: int = 4) -> dict[str, Any]:
    """What the plan prints and the manifest holds: resolution reached, generators, aliases."""
    names = list(factors)
    table = fractional_table(len(names), resolution)
    found = aliases(table)
    word = [i * "I" for i in range(4)] + ["IV", "V"]
    reached = _resolution(table)
    return {
        "kind": "fractional",
        "resolution": reached,
        "roman": "full" if reached is None else word[reached] if reached < 6 else f">{word[5]}",
        "asked": resolution,
        "runs": len(table),
        "full_runs": 2 ** len(names),
        "generators": _generators(table, names),
        "aliases": {
            _term(chain[0][0], names): [
                ("-" if sign < 0 else "") + _term(term, names) for term, sign in chain[1:]
            ]
            for chain in found
            if len(chain) > 1
        },
    }


Term = tuple[int, ...]


def aliases(table: Int8[np.ndarray, "runs factors"]) -> list[list[tuple[Term, int]]]:
    """Main effects and two-way interactions that the design cannot tell apart.

    Each chain holds (columns, sign), the lowest first with sign 1: the contrast estimates
    the sum of them all. A chain of length 1 is clear of the others.
    """
    signs = 2 * table.astype("int64") - 1
    k = signs.shape[1]
    chains: dict[bytes, list[tuple[Term, int]]] = {}
    for size in (1, 2):
        for term in itertools.combinations(range(k), size):
            column = signs[:, term].prod(axis=1)
            sign = int(column[0])
            chains.setdefault((column * sign).tobytes(), []).append((term, sign))
    return [[(t, s * chain[0][1]) for t, s in chain] for chain in chains.values()]


def _resolution(table: Int8[np.ndarray, "runs factors"]) -> int | None:
    """Length of the shortest word of the defining relation up to 5; 6 for longer; None: full."""
    runs, k = table.shape
    if runs == 2**k:
        return None
    signs = 2 * table.astype("int64") - 1
    for size in (3, 4, 5):
        for term in itertools.combinations(range(k), size):
            if abs(int(signs[:, term].prod(axis=1).sum())) == runs:
                return size
    return 6


def _generators(table: Int8[np.ndarray, "runs factors"], names: list[str]) -> list[str]:
    """`d = a x b x c`: each factor that is no basic one, as a product of basic ones."""
    bits = [int("".join(map(str, column)), 2) for column in table.T.tolist()]
    basis: list[tuple[int, frozenset[int]]] = []  # (reduced column, basic factors it sums)
    made = []
    for i, column in enumerate(bits):
        rest, parts = column, frozenset[int]()
        for vector, members in basis:
            if rest ^ vector < rest:
                rest, parts = rest ^ vector, parts ^ members
        if rest:
            basis.append((rest, parts | {i}))
            basis.sort(reverse=True)
        else:
            sign = "-" if len(parts) % 2 == 0 else ""
            made.append(f"{names[i]} = {sign}{' x '.join(names[j] for j in sorted(parts))}")
    return made


def _term(term: Term, names: list[str]) -> str:
    return " x ".join(names[i] for i in term)
