"""Lists of levels made of lists of levels: zipped, multiplied, united.

width_and_depth:
  zip:                                          # the first with the first, the second ...
    width: [model.d_model=64, model.d_model=96]
    depth: [model.n_layers=6, model.n_layers=4]
position:
  union:                                        # one list after the other, each level once
    - [position=alibi, position=none]
    - product:                                  # every combination
        scheme: [position=rope]
        theta:  [model.rope_theta=20000, model.rope_theta=100000]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ablate.config.overrides import parse_override
from ablate.design import BASELINE, Level
from ablate.errors import ConfigError

__all__ = ["WORDS", "combined"]

WORDS = ("zip", "product", "union")

Read = Callable[[str, str, Any], list[Level]]
"""(factor, dotted field, what is written) -> levels."""


def combined(factor: str, field: str, value: Mapping[str, Any], read: Read) -> list[Level] | None:
    """The levels of {zip: ...}, {product: ...} or {union: [...]}; None for any other mapping.

    Raises:
        ConfigError: for lists of unequal length, or what cannot be combined.
    """
    if len(value) != 1 or (word := next(iter(value))) not in WORDS:
        return None
    inner = value[word]
    field = f"{field}.{word}"
    if isinstance(inner, str):
        return None  # a level that is labelled `zip`
    if word == "union":
        if not isinstance(inner, list) or not inner:
            raise ConfigError(field, inner, "must be a list of lists of levels")
        return _union(
            [level for i, part in enumerate(inner) for level in read(factor, f"{field}[{i}]", part)]
        )
    if not isinstance(inner, Mapping) or len(inner) < 2:
        raise ConfigError(field, inner, "must name two lists of levels or more")
    parts = {str(name): read(str(name), f"{field}.{name}", part) for name, part in inner.items()}
    if word == "product":
        return [_joined(field, chosen) for chosen in itertools.product(*parts.values())]
    lengths = {name: len(levels) for name, levels in parts.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        reason = f"lists that are zipped must be of one length, and {said} levels"
        remedy = "Add levels, or use product for every combination"
        raise ConfigError(field, list(parts), reason, remedy)
    return [_joined(field, chosen) for chosen in zip(*parts.values(), strict=True)]


def _joined(field: str, levels: tuple[Level, ...]) -> Level:
    overrides = tuple(o for level in levels for o in level.overrides)
    keys = [parse_override(o).key for o in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(field, " ".join(overrides), f"sets {key} twice", "Keep one of them")
    labels = [level.label for level in levels if not level.is_baseline]
    return Level(label="+".join(labels) or BASELINE, overrides=overrides)


def _union(levels: list[Level]) -> list[Level]:
    """Each level once; two that only share their label stay, and are refused by the design."""
    return list({(frozenset(level.overrides)): level for level in reversed(levels)}.values())[::-1]
