"""ladder: one change after the other, each on top of all that came before; in one order or many.

In several orders the same set of changes is the same arm, so N orders of k steps cost at most
N (k - 1) + 2 arms. In each order the steps sum to the whole gain, and the mean over orders of a
step's share is its Shapley value (estimated; exact where all k! orders are taken).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from ablate.design.arm import (
    BASELINE,
    ArmSpec,
    Factors,
    Level,
    arm,
    baseline_levels,
    changes,
    check_factors,
    level_name,
)
from ablate.errors import ConfigError, PlanError

__all__ = ["FEWEST_ORDERS", "Orders", "ladder", "ladder_info", "ladder_orders", "too_few_orders"]

Orders = int | str | Sequence[str]
"""given, reverse, a list of these, or how many orders are drawn."""

MOST_ORDERS = 1000
FEWEST_ORDERS = 4
"""Fewer, of more that there are, give no interval of a step's share. Of two, half of all pairs of
steps are seen in one order only, and nothing tells what they would do in the other: an interval
meant for 95 % then covers 82 to 97 %, after the kind of interaction."""


def ladder(factors: Factors, *, orders: Orders = "given", draw_seed: int = 0) -> list[ArmSpec]:
    """In the given order 1 + the number of levels; `+<factor>-<label>` against the previous rung.

    A second level of a factor is a rung of its own, which replaces the first. In other orders
    every factor has one change, an arm is named after its changes (or, of many, after those that
    it is `without`), and stands against the rung below it in the first order that passes it.

    Raises:
        PlanError: for a null level, since a rung changes something; for several levels of a
            factor in other orders than the given one.
        ConfigError: for orders that there are not.
    """
    check_factors("ladder", factors)
    for factor, levels in factors.items():
        if any(level.is_baseline for level in levels):
            raise PlanError(
                f"sweep.factors.{factor} lists the baseline's level, and a rung of a ladder "
                "must change something. Remove the null."
            )
    paths = ladder_orders(factors, orders=orders, draw_seed=draw_seed)
    if paths == [list(factors)]:
        return _given(factors)
    base = baseline_levels(factors)
    arms = {frozenset[str](): arm(BASELINE, base, None)}
    for path in paths:
        below = arms[frozenset()]
        for i in range(len(path)):
            on = frozenset(path[: i + 1])
            if on not in arms:
                levels = {f: factors[f][0] if f in on else base[f] for f in factors}
                arms[on] = arm(_set_name(factors, on), levels, below.name)
            below = arms[on]
    return list(arms.values())


def ladder_orders(
    factors: Factors, *, orders: Orders = "given", draw_seed: int = 0
) -> list[list[str]]:
    """The orders of the factors that are climbed, each once; drawn ones uniformly, without
    replacement.
    """
    given = list(factors)
    if isinstance(orders, int):
        paths = _drawn(given, orders, draw_seed)
    else:
        wanted = [orders] if isinstance(orders, str) else list(orders)
        known = {"given": given, "reverse": given[::-1]}
        if not wanted or any(word not in known for word in wanted):
            reason = "must be given, reverse, a list of these, or how many orders are drawn"
            raise ConfigError("sweep.orders", orders, reason)
        paths = [list(path) for path in dict.fromkeys(tuple(known[word]) for word in wanted)]
    for factor, levels in factors.items():
        if paths != [given] and len(changes(levels)) > 1:
            raise PlanError(
                f"sweep.factors.{factor} has {len(changes(levels))} levels, and only the given "
                "order says which of them is the last word. Keep one, or use orders: given."
            )
    return paths


def too_few_orders(factors: Factors, orders: Orders) -> int | None:
    """How many orders are climbed, where they are too few for an interval of a step's share; one
    that is meant (given, reverse) needs no other.
    """
    wanted = orders if isinstance(orders, int) else len(ladder_orders(factors, orders=orders))
    meant = wanted == 1 and not isinstance(orders, int)
    few = wanted < min(FEWEST_ORDERS, math.factorial(min(len(factors), FEWEST_ORDERS)))
    return wanted if few and not meant else None


def _drawn(given: list[str], number: int, seed: int) -> list[list[str]]:
    total = math.factorial(len(given)) if len(given) < 20 else math.inf
    most = int(min(total, MOST_ORDERS))
    if not 1 <= number <= most:
        reason = f"must lie between 1 and {most}, for {len(given)} steps"
        raise ConfigError("sweep.orders", number, reason, f"{most} takes all of them")
    rng, drawn = random.Random(seed), dict[tuple[str, ...], None]()
    while len(drawn) < number:
        drawn[tuple(rng.sample(given, len(given)))] = None
    return [list(path) for path in drawn]


def ladder_info(
    factors: Factors, *, orders: Orders = "given", draw_seed: int = 0
) -> dict[str, Any]:
    """The orders as arm names from the baseline up, and the factor of each step."""
    paths = ladder_orders(factors, orders=orders, draw_seed=draw_seed)
    arms = ladder(factors, orders=orders, draw_seed=draw_seed)
    if paths == [list(factors)]:
        steps = [factor for factor, levels in factors.items() for _ in levels]
        climbed = [[a.name for a in arms]]
        return {"kind": "ladder", "orders": climbed, "steps": [steps], "draw_seed": None}
    base = baseline_levels(factors)
    names = {frozenset(f for f in factors if a.levels[f] != base[f].label): a.name for a in arms}
    return {
        "kind": "ladder",
        "orders": [[names[frozenset(p[:i])] for i in range(len(p) + 1)] for p in paths],
        "steps": paths,
        "draw_seed": draw_seed if isinstance(orders, int) else None,
    }


def _given(factors: Factors) -> list[ArmSpec]:
    current: dict[str, Level] = baseline_levels(factors)
    arms = [arm(BASELINE, current, None)]
    for factor, levels in factors.items():
        for level in levels:
            current = {**current, factor: level}
            arms.append(arm(f"+{level_name(factor, level)}", current, arms[-1].name))
    return arms


def _set_name(factors: Factors, on: frozenset[str]) -> str:
    """`+a+b`, or `without-c` where that is shorter, or `full`."""
    name = {f: level_name(f, levels[0]) for f, levels in factors.items()}
    off = [name[f] for f in factors if f not in on]
    if not off:
        return "full"
    if len(off) < len(on):
        return "without-" + "+".join(off)
    return "+" + "+".join(name[f] for f in factors if f in on)
