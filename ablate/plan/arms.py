"""From arms as overrides to arms as configurations, each proved to be a change.

Three ways in which a toggle fails silently are refused here: it sets nothing new, it sets what the
run never reads, or something else sets the same field over it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.config.compose import Composer
from ablate.design import ArmSpec
from ablate.errors import ConfigError, PlanError, show
from ablate.plan.canonical import difference, flat, resolve
from ablate.plan.effective import effective_fingerprint, unread

__all__ = [
    "ComposedArm",
    "Toggles",
    "check_inert",
    "compose_arm",
    "merge_baseline",
    "refuse_duplicates",
]


@dataclass(kw_only=True)
class ComposedArm:
    """An arm on its way through the checks."""

    spec: ArmSpec
    config: dict[str, Any]
    """Canonical."""
    replaces: list[str] = field(default_factory=list)
    """What a rung of a ladder takes back of earlier rungs, in words."""

    @functools.cached_property
    def effective(self) -> str:
        """Fingerprint of what it computes; ask once the configuration is final."""
        return effective_fingerprint(self.config)

    @functools.cached_property
    def unread(self) -> dict[str, str]:
        """Fields that it ignores, and why; ask once the configuration is final."""
        return unread(self.config)


class Toggles:
    """What each override sets, by itself: dotted field -> value."""

    def __init__(self, composer: Composer) -> None:
        self.composer = composer
        self._cache: dict[str, dict[str, Any]] = {}

    def sets(self, override: str) -> dict[str, Any]:
        if override not in self._cache:
            fields = self.composer.touched(override)
            values = dict(flat(self.composer.compose([override]))) if fields else {}
            self._cache[override] = {f: values[f] for f in sorted(fields) if f in values}
        return self._cache[override]


def compose_arm(
    spec: ArmSpec, base: Sequence[str], composer: Composer, toggles: Toggles, *, ladder: bool
) -> ComposedArm:
    """The configuration of `base` plus the arm's overrides; every toggle has had its way.

    Inside a toggle overrides go together, and a later one may refine an earlier one. In a ladder
    a later rung may take an earlier one's field; it is noted.

    Raises:
        PlanError: with the arm's name in front, for an illegal configuration, or where two
            toggles set one field to different values.
    """
    try:
        tree = composer.compose([*base, *spec.overrides])
        config = resolve(tree)
    except ConfigError as error:
        raise PlanError(f"Arm {spec.name}: {error}") from error
    arm = ComposedArm(spec=spec, config=config)
    final = dict(flat(tree))
    groups = spec.toggles or tuple((override,) for override in spec.overrides)
    for i, override in ((i, override) for i, group in enumerate(groups) for override in group):
        for name, wanted in toggles.sets(override).items():
            if name not in final or final[name] == wanted:
                continue
            if _setter(name, final[name], groups[i], toggles):
                continue
            rest = [other for group in groups[i + 1 :] for other in group]
            later = _setter(name, final[name], rest, toggles)
            if ladder and later is not None:
                note = f"{later} replaces {name}={show(wanted)} of {override}"
                if note not in arm.replaces:
                    arm.replaces.append(note)
                continue
            winner = (
                _setter(name, final[name], [*base, *spec.overrides], toggles)
                or "the base configuration"
            )
            raise PlanError(
                f"Arm {spec.name}: {override} sets {name}={show(wanted)}, but {winner} sets it "
                f"to {show(final[name])}, which wins. Two toggles of one arm must not set one "
                "field to different values: drop one of them, or give them the same value."
            )
    return arm


def _setter(name: str, value: Any, overrides: Sequence[str], toggles: Toggles) -> str | None:
    """The last of the overrides that sets the field to this value."""
    for override in reversed(overrides):
        if "sweep" in override.partition("=")[0]:
            continue
        sets = toggles.sets(override)
        if name in sets and sets[name] == value:
            return override
    return None


def check_inert(arms: Sequence[ComposedArm]) -> None:
    """Every arm computes something else than its reference; every field that it changes is read.

    Raises:
        PlanError: naming the arm, its overrides, the fields and why they have no effect.
    """
    by_name = {arm.spec.name: arm for arm in arms}
    for arm in arms:
        if arm.spec.reference is None:
            continue
        reference = by_name[arm.spec.reference]
        changed = difference(reference.config, arm.config)
        ignored, before = arm.unread, reference.unread
        inert = {name: ignored[name] for name in changed if name in ignored and name in before}
        if arm.effective != reference.effective and not inert:
            continue
        what = f"Arm {arm.spec.name} ({' '.join(_new_overrides(arm.spec, reference.spec))})"
        if not changed:
            raise PlanError(
                f"{what} changes nothing against {reference.spec.name}: every field that it sets "
                "has that value already. Remove the toggle, or write null where the baseline's "
                "own level is meant."
            )
        reasons = "; ".join(
            f"{name} from {show(changed[name][0])} to {show(changed[name][1])}, but "
            + inert.get(name, ignored.get(name, "it means the same"))
            for name in (inert or changed)
        )
        raise PlanError(
            f"{what} sets what has no effect against {reference.spec.name}: {reasons}. Remove "
            "it, or switch on in the same level what reads it."
        )


def _new_overrides(arm: ArmSpec, reference: ArmSpec) -> list[str]:
    """What tells the arm from its reference: overrides it adds, or those that it leaves out."""
    added = [o for o in arm.overrides if o not in reference.overrides]
    return (
        added
        or [f"without {o}" for o in reference.overrides if o not in arm.overrides]
        or ["no override"]
    )


def merge_baseline(arms: Sequence[ComposedArm]) -> list[ComposedArm]:
    """Of a grid: a combination that spells out the baseline is the baseline, with its labels."""
    base, *others = arms
    kept = []
    for arm in others:
        if difference(base.config, arm.config):
            kept.append(arm)
        else:
            spec = dataclasses.replace(base.spec, levels=arm.spec.levels)
            base = dataclasses.replace(base, spec=spec)
    return [base, *kept]


def refuse_duplicates(arms: Sequence[ComposedArm]) -> None:
    """Raises PlanError naming two arms that compute the same thing."""
    seen: dict[str, ComposedArm] = {}
    for arm in arms:
        first = seen.setdefault(arm.effective, arm)
        if first is not arm:
            raise PlanError(
                f"Arms {first.spec.name} and {arm.spec.name} are one and the same configuration "
                f"({_spelled(first.spec)} computes what {_spelled(arm.spec)} does). Remove a "
                "level, or leave the combination out with sweep.exclude."
            )


def _spelled(spec: ArmSpec) -> str:
    return " ".join(spec.overrides) or "the baseline"
