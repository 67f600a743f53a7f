"""Resizing an arm to the baseline's parameters or FLOPs: MLP width first, then depth.

Parameters are all parameters, embeddings and an untied head included: what the table of the plan
shows is what is equal. FLOPs are those of one training token
(`ablate.model.count.flops_per_token`). An arm that is within 1 % already is left alone, because
resized tensors are no longer shared with the other arms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ablate.errors import ConfigError, PlanError
from ablate.model.config import ModelConfig

__all__ = ["TOLERANCE", "match"]

TOLERANCE = 0.01
"""Largest relative distance from the baseline."""

Cost = Callable[[ModelConfig], int]


def match(
    arm: str,
    model: ModelConfig,
    target: int,
    cost: Cost,
    what: str,
    *,
    prefer: ModelConfig | None = None,
) -> dict[str, list[Any]]:
    """{model field: [from, to]} that brings `cost(model)` within 1 % of `target`.

    `prefer` is the arm's reference: where its size is near enough, it is taken, and the two stay
    paired.

    The width (before the gate) becomes a multiple of 8 where that is near enough, else of 2, and
    lies between a quarter and four times its own. Where no width does it, layers are added or
    removed, nearest first, up to half or double.

    Raises:
        PlanError: where neither does.
    """
    if _near(cost(model), target):
        return {}
    if prefer is not None:
        alike = model.replace(n_layers=prefer.n_layers, mlp_hidden_size=prefer.hidden_size)
        if _near(cost(alike), target):
            return _changes(model, alike)
    for layers in _depths(model):
        try:
            deep = model.replace(n_layers=layers)
        except ConfigError:
            continue
        width = _width(deep, target, cost)
        if width is not None:
            return _changes(model, _wide(deep, width))
    have = cost(model)
    raise PlanError(
        f"Arm {arm} cannot be matched to the baseline's {target:,} {what}: it has {have:,} "
        f"({have / target - 1:+.1%}), and no MLP width from a quarter to four times "
        f"{model.hidden_size} with half to double its {model.n_layers} layers comes within "
        f"{TOLERANCE:.0%}. Use sweep.match=none, or choose a baseline and arm of nearer size."
    )


def _changes(old: ModelConfig, new: ModelConfig) -> dict[str, list[Any]]:
    changed: dict[str, list[Any]] = {}
    if new.n_layers != old.n_layers:
        changed["n_layers"] = [old.n_layers, new.n_layers]
    if new.hidden_size != old.hidden_size:
        changed["mlp_hidden_size"] = [old.hidden_size, new.hidden_size]
    return changed


def _near(value: int, target: int) -> bool:
    return abs(value - target) <= TOLERANCE * target


def _depths(model: ModelConfig) -> Iterator[int]:
    """Its own depth first, then one layer (or block group) more or less, two, ..."""
    own, step = model.n_layers, model.block_group_size
    yield own
    for k in range(1, own // step + 1):
        if 2 * (own - k * step) >= own:
            yield own - k * step
        if own + k * step <= 2 * own:
            yield own + k * step


def _width(model: ModelConfig, target: int, cost: Cost) -> int | None:
    """The MLP width that hits the target, None where none does. Cost is linear in the width."""
    own = model.hidden_size
    low, high = max(8, own // 4 // 8 * 8), max(16, own * 4)
    at_low, at_high = cost(_wide(model, low)), cost(_wide(model, high))
    if at_high <= at_low:
        return own if _near(cost(model), target) else None
    ideal = low + (target - at_low) * (high - low) / (at_high - at_low)
    for multiple in (8, 2):
        width = min(max(round(ideal / multiple) * multiple, low), high)
        if _near(cost(_wide(model, width)), target):
            return width
    return None


def _wide(model: ModelConfig, width: int) -> ModelConfig:
    return model.replace(mlp_hidden_size=width)
