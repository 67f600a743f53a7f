"""The budget of a sweep: one number of steps for every arm."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.config.typed import closest, require
from ablate.errors import ConfigError

__all__ = [
    "budget_text",
    "given_steps",
    "overruled",
    "quantity",
    "sets_budget",
    "steps_of",
    "tokens_per_step",
    "whole_budget",
]

SUFFIXES = {
    "": 1,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "B": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}
KINDS = ("steps", "tokens", "flops")


def quantity(field: str, value: Any) -> float:
    """A positive amount: 2000000, 2e6, "2M", "1.5B", "3e15".

    Raises:
        ConfigError: naming `field`.
    """
    remedy = "Write a number, with a suffix K, M, B or T where it is large (2M)"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(field, value, "must be an amount", remedy)
    match = re.fullmatch(
        r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([kKMGBTPE]?)\s*", str(value)
    )
    if match is None:
        raise ConfigError(field, value, "cannot be read as an amount", remedy)
    number = float(match[1].replace("_", "")) * SUFFIXES[match[2]]
    require(number > 0 and math.isfinite(number), field, value, "must be greater than 0", remedy)
    return number


def tokens_per_step(config: Mapping[str, Any]) -> int:
    """Input tokens of one optimizer step of a resolved configuration."""
    length = config["train"]["sequence_length"] or config["model"]["max_sequence_length"]
    return config["train"]["batch_size"] * length


def steps_of(
    budget: Mapping[str, Any] | None, config: Mapping[str, Any], flops_per_token: int
) -> int:
    """Steps that the budget gives the baseline, rounded; train.steps where there is no budget.

    Every arm trains for as many steps, whatever a step of it costs.
    """
    if budget is None:
        return config["train"]["steps"]
    given = {k: v for k, v in budget.items() if v is not None}
    for key in given:
        if key not in KINDS:
            raise ConfigError(
                f"sweep.budget.{key}", given[key], "there is no such budget", closest(key, KINDS)
            )
    if len(given) != 1:
        shown, reason = f"{{{budget_text(given)}}}", "must name one of steps, tokens and flops"
        remedy = "Write for example budget: {tokens: 2M}"
        raise ConfigError("sweep.budget", shown, reason, remedy)
    ((kind, value),) = given.items()
    field = f"sweep.budget.{kind}"
    amount = quantity(field, value)
    if kind == "steps":
        require(amount == int(amount), field, value, "must be a whole number of steps")
        return int(amount)
    step = tokens_per_step(config) * (flops_per_token if kind == "flops" else 1)
    steps = round(amount / step)
    remedy = f"One step costs {step:,} {kind}"
    require(steps >= 1, field, value, "is less than one step of the baseline", remedy)
    return steps


def sets_budget(override: str) -> bool:
    return override.lstrip("+").startswith(("sweep.budget=", "sweep.budget."))


def whole_budget(overrides: Sequence[str]) -> list[str]:
    """A budget on the command line stands in place of the sweep's: tokens do not join its steps."""
    budget = [o for o in overrides if sets_budget(o)]
    if not budget:
        return list(overrides)
    rest = [o for o in overrides if o not in budget]
    parts = [f"++{o.lstrip('+')}" if "sweep.budget." in o.partition("=")[0] else o for o in budget]
    return [*rest, "sweep.budget=null", *parts]


def overruled(own: Any, now: Any) -> list[str]:
    """Says which budget of the sweep's own another kind of budget has replaced."""
    if not isinstance(own, Mapping) or not isinstance(now, Mapping):
        return []  # null says what it does, and what is no budget is refused later
    lost = {k: v for k, v in own.items() if v is not None and k not in now}
    if not lost:
        return []
    said = ", ".join(f"sweep.budget.{k}={v}" for k, v in now.items())
    return [f"{said} stands in place of the sweep's own budget ({budget_text(lost)})."]


def given_steps(overrides: Sequence[str]) -> str | None:
    """The override that sets train.steps, the newer word than a sweep's budget; None without."""
    found = [o for o in overrides if o.partition("=")[0].lstrip("+") == "train.steps"]
    return found[-1] if found else None


def budget_text(budget: Mapping[str, Any]) -> str:
    return ", ".join(f"{kind}: {value}" for kind, value in budget.items())
