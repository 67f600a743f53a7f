"""Combinations that a sweep leaves out: an arm goes where every condition of one entry holds.

exclude:
  - {position: alibi, window: [w64, w128]}    # alibi with one of these windows
  - {position: {not: rope}, theta: changed}   # another theta without RoPE
  - {norm: baseline, qk_norm: changed}        # QK-norm with the baseline's norm

A condition is a label, a list of labels, `changed` (any level but the baseline's), or {not: ...} of
these. `baseline` is the baseline's level, whatever its label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.config.typed import closest
from ablate.design import BASELINE, ArmSpec, Factors
from ablate.errors import ConfigError, PlanError, show

__all__ = ["CHANGED", "exclude"]

CHANGED = "changed"


def exclude(
    arms: list[ArmSpec], predicates: Sequence[Mapping[str, Any]], factors: Factors
) -> list[ArmSpec]:
    """The arms that no predicate matches.

    Raises:
        ConfigError: for an unknown factor or label.
        PlanError: where a predicate matches the baseline, nothing, or an arm that others are
            compared with.
    """
    left_out: set[str] = set()
    base = arms[0].levels
    for i, predicate in enumerate(predicates):
        field = f"sweep.exclude[{i}]"
        wanted = {
            factor: _labels(f"{field}.{factor}", condition, factor, factors, base)
            for factor, condition in predicate.items()
        }
        matched = {
            arm.name for arm in arms if all(arm.levels[f] in labels for f, labels in wanted.items())
        }
        if not wanted or not matched:
            raise ConfigError(field, dict(predicate), "matches no arm of the design", "Remove it")
        if BASELINE in matched:
            raise PlanError(
                f"{field} excludes the baseline, and every study has one. Narrow the predicate."
            )
        left_out |= matched
    kept = [arm for arm in arms if arm.name not in left_out]
    for arm in kept:
        if arm.reference in left_out:
            raise PlanError(
                f"sweep.exclude leaves out {arm.reference}, which {arm.name} is compared with."
            )
    if len(kept) < 2:
        raise PlanError("sweep.exclude leaves no arm besides the baseline.")
    return kept


def _labels(
    field: str, condition: Any, factor: str, factors: Factors, base: Mapping[str, str]
) -> set[str]:
    """The labels of the factor at which the condition holds."""
    if factor not in factors:
        raise ConfigError(field, condition, "there is no such factor", closest(factor, factors))
    known = {level.label for level in factors[factor]} | {base[factor]}
    if isinstance(condition, Mapping):
        if list(condition) != ["not"]:
            reason = "must be a label, a list of labels, changed, or {not: ...} of these"
            raise ConfigError(field, dict(condition), reason)
        return known - _labels(f"{field}.not", condition["not"], factor, factors, base)
    found = set()
    for item in condition if isinstance(condition, list) else [condition]:
        label = show(item)
        if label in known:
            found.add(label)
        elif label == CHANGED:
            found |= known - {base[factor]}
        elif label == BASELINE:
            found.add(base[factor])
        else:
            hint = closest(label, known | {CHANGED})
            raise ConfigError(field, label, f"{factor} has no such level", hint)
    return found
