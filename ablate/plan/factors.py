"""The `factors:` of a sweep to levels with labels.

norm: [norm=rms]                                  one level
position: [null, position=rope, position=alibi]   three, the first is the baseline's
theta: [[position=rope, model.rope_theta=500000]] one level of two overrides that go together
width: {narrow: model.d_model=64, wide: [model.d_model=256, model.n_heads=8]}    with labels
both: {zip: {width: [...], depth: [...]}}         zip, product and union of lists: see lists.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.design import BASELINE, Level, slug
from ablate.errors import ConfigError, show
from ablate.plan.lists import combined

__all__ = ["read_factors"]


def read_factors(factors: Mapping[str, Any]) -> dict[str, list[Level]]:
    """Factor to levels, in the order of the file.

    Raises:
        ConfigError: naming `sweep.factors.<factor>`.
    """
    return {
        str(name): _levels(str(name), f"sweep.factors.{name}", value)
        for name, value in factors.items()
    }


def _levels(factor: str, field: str, value: Any) -> list[Level]:
    if value is None or value in ([], {}):
        raise ConfigError(
            field, value, "has no level", f"Write for example {factor}: [{factor}=...]"
        )
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        made = combined(factor, field, value, _levels)
        if made is not None:
            return made
    items = [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple):
        raise ConfigError(
            field, value, "must be a list of levels, or a mapping of labels to overrides"
        )
    levels: list[Level] = []
    for i, item in enumerate(items):
        if isinstance(item, Mapping):
            levels += [
                Level(
                    label=slug(show(label)), overrides=_overrides(f"{field}.{show(label)}", given)
                )
                for label, given in item.items()
            ]
        else:
            overrides = _overrides(f"{field}[{i}]", item)
            levels.append(Level(label=_label(factor, overrides), overrides=overrides))
    labels = [level.label for level in levels]
    # Two levels that begin with the same override are told apart by all of them.
    return [
        Level(label=_long_label(factor, level.overrides), overrides=level.overrides)
        if labels.count(level.label) > 1 and len(level.overrides) > 1
        else level
        for level in levels
    ]


def _overrides(field: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        reason = "a level is an override, a list of overrides that go together, or null"
        raise ConfigError(field, value, reason, "Quote it, as in 'key=value'")
    for item in items:
        key = item.partition("=")[0].lstrip("+~")
        if "=" not in item and not item.startswith("~"):
            raise ConfigError(field, item, "is not an override", "Write key=value")
        if key == "seed" or key.split(".")[0] in (
            "sweep",
            "study",
            "runs_dir",
            "force",
            "track",
            "cluster",
        ):
            reason = (
                f"{key} does not belong to an arm: it names the study, its seeds or where it runs"
            )
            raise ConfigError(
                field, item, reason, "Use sweep.seeds for seeds, or set it for the whole sweep"
            )
    keys = [_key(item) for item in items]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(field, value, f"sets {key} twice", "Keep one of them")
    return tuple(items)


def _label(factor: str, overrides: tuple[str, ...]) -> str:
    if not overrides:
        return BASELINE
    own = [o for o in overrides if factor in (_key(o), _key(o).rpartition(".")[2])]
    return slug(_short(factor, (own or list(overrides))[0]))


def _long_label(factor: str, overrides: tuple[str, ...]) -> str:
    return slug("+".join(_short(factor, o) for o in overrides))


def _short(factor: str, override: str) -> str:
    """`rope` of position=rope, `norm_after` of model.norm_after=true, `rope_theta-500000`."""
    key, value = _key(override), override.partition("=")[2].strip("'\"")
    last = key.rpartition(".")[2]
    if factor in (key, last):
        return value or "none"
    if value.lower() in ("true", "false"):
        return last if value.lower() == "true" else f"no_{last}"
    return f"{last}-{value}"


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
