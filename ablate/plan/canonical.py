"""Configuration trees: the canonical form, dotted fields, differences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from ablate.config.schema import TrialConfig
from ablate.config.sources import SOURCES, sources
from ablate.model.config import ModelConfig

__all__ = ["RUN_FIELDS", "completed", "difference", "flat", "resolve", "section", "typed"]

RUN_FIELDS = frozenset({"seed", "study", "runs_dir", "force", "track", "cluster"})
"""What an arm is not made of: which trial, where it lies, who watches."""


def resolve(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A composed tree as config.yaml holds it: typed, complete, plain JSON types, no `sweep`.

    What import paths name is in it by a digest of its code (`ablate.config.sources`).

    Raises:
        ConfigError: naming the field.
    """
    config = TrialConfig.from_mapping(tree)
    resolved = {f.name: section(getattr(config, f.name)) for f in dataclasses.fields(config)}
    resolved["model"] = section(ModelConfig.from_mapping(config.model))
    found = sources(resolved)
    return {**resolved, SOURCES: found} if found else resolved


def typed(config: Mapping[str, Any]) -> TrialConfig:
    """Of an arm, also one that was frozen before some fields were there: those are at their
    defaults.

    Its study's name is left out: it may be the sweep's (claims/cache) until a folder is made of it.
    """
    return TrialConfig.from_mapping({**config, "study": None})


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A canonical tree, also one that was frozen before some fields were there: those are at their
    defaults, which change nothing, so it is the same trial.
    """
    whole = dict(config)
    for name, fields in _defaults().items():
        own = config.get(name, {})
        whole[name] = {**own, **{k: v for k, v in fields.items() if k not in own}}
    return whole


@functools.cache
def _defaults() -> dict[str, dict[str, Any]]:
    """Of every section, field by field."""
    found = {**section(TrialConfig()), "model": section(ModelConfig())}
    return {name: fields for name, fields in found.items() if isinstance(fields, dict)}


def section(value: Any) -> Any:
    """Dataclasses to dicts and tuples to lists, all the way down."""
    if dataclasses.is_dataclass(value):
        return {f.name: section(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): section(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [section(v) for v in value]
    return value


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted field, value); lists are values."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Dotted field -> [value in a, value in b], where two configurations differ as arms; a field
    that one of them is older than has its default there.
    """
    a, b = completed(a), completed(b)
    changed: dict[str, list[Any]] = {}
    for key in [*a, *(k for k in b if k not in a)]:
        if key in RUN_FIELDS or a.get(key) == b.get(key):
            continue
        left, right = dict(flat({key: a.get(key)})), dict(flat({key: b.get(key)}))
        for field in [*left, *(k for k in right if k not in left)]:
            if left.get(field) != right.get(field):
                changed[field] = [left.get(field), right.get(field)]
    return changed
