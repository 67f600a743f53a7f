"""Overrides that nobody would miss: what they set, the run never reads; or another one, given for
the same group, silently takes their place.

For trials that no sweep compares (`ablate train`), and for words that go to every arm of a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ablate.config.compose import Composer
from ablate.config.overrides import parse_override
from ablate.errors import ConfigError, show
from ablate.plan.canonical import difference, resolve
from ablate.plan.effective import OF_THE_RUN, ROADS, unread

__all__ = ["refuse_common", "refuse_repeated_groups", "refuse_without_effect", "without_effect"]


def refuse_repeated_groups(overrides: Sequence[str], composer: Composer) -> None:
    """Raises ConfigError for two options of one group, of which only the last would count."""
    groups, chosen = composer.groups(), {}
    for line in overrides:
        override = parse_override(line)
        if override.key not in groups or override.kind == "delete":
            continue
        first = chosen.setdefault(override.key, override.value)
        if first != override.value:
            raise ConfigError(
                override.key,
                override.value,
                f"{override.key}={show(first)} is given too, and only the last of them would count",
                "Leave one of them out; what both should set are fields (model.KEY=VALUE)",
            )


def without_effect(
    config: Mapping[str, Any],
    overrides: Sequence[str],
    composer: Composer,
    among: Collection[str] | None = None,
) -> dict[str, str]:
    """Override -> why nothing that it changes is ever read; one that spells out what holds without
    it is let be.

    Args:
        config: canonical, of all the overrides.
        overrides: Hydra's grammar.
        composer: finds the user's options.
        among: the overrides that are looked at; None: all.
    """
    roads = {f"model.{name}" for name in ROADS}
    ignored = {
        field: why
        for field, why in unread(config).items()
        if why != OF_THE_RUN and field not in roads
    }
    found = {}
    for line in overrides if among is None else among:
        fields = composer.touched(line)
        if not fields or not fields <= ignored.keys():
            continue
        try:
            without = resolve(composer.compose([o for o in overrides if o != line]))
        except ConfigError:
            continue  # it is needed
        changed = [field for field in difference(without, config) if field in fields]
        if changed:
            found[line] = "; ".join(dict.fromkeys(ignored[field] for field in changed))
    return found


def refuse_common(found: Iterable[Mapping[str, str]]) -> None:
    """Raises ConfigError for an override that is without effect in every one of several trials."""
    first, *others = found
    refuse_without_effect({o: why for o, why in first.items() if all(o in each for each in others)})


def refuse_without_effect(found: Mapping[str, str]) -> None:
    """Raises ConfigError for the first of what `without_effect` has found."""
    for line, why in found.items():
        key, _, value = line.partition("=")
        remedy = "Leave it out, or switch on what reads it"
        raise ConfigError(key.lstrip("+~"), value, f"has no effect here: {why}", remedy)
