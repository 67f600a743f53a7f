"""Combinations that a sweep leaves out.

exclude:
  - {position: alibi, window: [w64, w128]}    # arms with alibi and one of these windows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.config.typed import closest
from ablate.design import BASELINE, ArmSpec, Factors
from ablate.errors import ConfigError, PlanError, show

__all__ = ["exclude"]


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
    for i, predicate in enumerate(predicates):
        field = f"sweep.exclude[{i}]"
        wanted = {
            factor: _labels(f"{field}.{factor}", labels, factor, factors)
            for factor, labels in predicate.items()
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


def _labels(field: str, labels: Any, factor: str, factors: Factors) -> set[str]:
    if factor not in factors:
        raise ConfigError(field, labels, "there is no such factor", closest(factor, factors))
    known = {level.label for level in factors[factor]} | {BASELINE}
    given = {show(label) for label in (labels if isinstance(labels, list) else [labels])}
    for label in given - known:
        raise ConfigError(field, label, f"{factor} has no such level", closest(label, known))
    return given
