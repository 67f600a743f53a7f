"""Levels and arms: what goes into a design and what comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.errors import PlanError

__all__ = ["BASELINE", "ArmSpec", "Factors", "Level", "arm", "changes", "check_factors", "slug"]

BASELINE = "baseline"
"""The name of the arm that every sweep has."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One value of a factor: overrides that go together; without any, the baseline's own level."""

    label: str
    overrides: tuple[str, ...] = ()

    @property
    def is_baseline(self) -> bool:
        return not self.overrides


Factors = Mapping[str, Sequence[Level]]
"""Factor to its levels, both in the order of the sweep."""


@dataclass(frozen=True, kw_only=True)
class ArmSpec:
    """One configuration under test, before it is composed."""

    name: str
    levels: dict[str, str]
    """Factor to label, for every factor of the design."""
    overrides: tuple[str, ...]
    """Of all its levels, in the order of the factors; on top of the baseline's."""
    reference: str | None
    """The arm that it is compared with; None for the baseline."""
    toggles: tuple[tuple[str, ...], ...] = ()
    """The same overrides, level by level: those of one level go together."""


def arm(name: str, levels: Mapping[str, Level], reference: str | None) -> ArmSpec:
    """The arm with these levels, one for each factor."""
    return ArmSpec(
        name=name,
        levels={factor: level.label for factor, level in levels.items()},
        overrides=tuple(o for level in levels.values() for o in level.overrides),
        reference=reference,
        toggles=tuple(level.overrides for level in changes(list(levels.values()))),
    )


def changes(levels: Sequence[Level]) -> list[Level]:
    """The levels that are not the baseline's."""
    return [level for level in levels if not level.is_baseline]


def baseline_level(levels: Sequence[Level]) -> Level:
    """The level that stands for the baseline: the one given without overrides, if any."""
    return next((level for level in levels if level.is_baseline), Level(label=BASELINE))


def baseline_levels(factors: Factors) -> dict[str, Level]:
    return {factor: baseline_level(levels) for factor, levels in factors.items()}


def check_factors(design: str, factors: Factors) -> None:
    """Every factor has a level that changes something, and distinct labels.

    Raises:
        PlanError: naming the factor.
    """
    if not factors:
        raise PlanError(
            f"sweep.factors is empty, so design={design} has nothing to vary. Name a factor."
        )
    for factor, levels in factors.items():
        if not changes(levels):
            raise PlanError(
                f"sweep.factors.{factor} has no level besides the baseline's, so it varies "
                "nothing. Add a level or remove the factor."
            )
        labels = [level.label for level in levels]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise PlanError(
                f"sweep.factors.{factor} has two levels called {twice[0]!r}. "
                "Write the factor as a mapping of labels to overrides, each label once."
            )


def slug(text: str) -> str:
    """`text` as part of a folder name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.") or "x"


def level_name(factor: str, level: Level) -> str:
    """`<factor>-<label>`, or one of them where it says all: `on`, a label that names the factor."""
    if level.label.lower() in ("on", "true", "yes"):
        return slug(factor)
    named = factor in re.split(r"[-+_]", level.label) or level.label == factor
    return slug(level.label if named else f"{factor}-{level.label}")
