"""Schedules made of parts: OLMo-core's `composable` and `sequential`, and the overriding decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ablate.config.schema import amount
from ablate.config.typed import build, require
from ablate.errors import ConfigError

__all__ = ["Rate", "composed", "overridden", "sequenced", "steps_of"]

Rate = Callable[[int], float]
Shape = Literal["linear", "cosine"]


def steps_of(field: str, value: str | int | float, steps: int, tokens_per_step: int) -> int:
    """A length of the configuration in steps; a fraction is one of `steps`."""
    kind, number = amount(field, value)
    if kind == "fraction":
        return round(number * steps)
    return round(number / tokens_per_step) if kind == "tokens" else int(number)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """From a start to an end, each as a rate or as a share of the peak."""

    duration: str | int | float
    shape: Shape = "linear"
    start_lr: float | None = None
    start_lr_fraction: float | None = None
    """Neither start: where the stage before ended, at first the peak."""
    end_lr: float | None = None
    end_lr_fraction: float | None = None


@dataclass(frozen=True, kw_only=True)
class OverrideDecay:
    """From `start` on, whatever the schedule would do: down to an end within `duration`."""

    start: str | int | float
    duration: str | int | float
    shape: Shape = "linear"
    end_lr: float | None = None
    end_lr_fraction: float | None = None


def between(shape: Shape, start: float, end: float, share: float) -> float:
    """`start` at share 0, `end` at share 1."""
    if shape == "linear":
        return start + (end - start) * share
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def composed(
    stages: Sequence[dict[str, Any]] | None, *, peak: float, steps: int, tokens_per_step: int
) -> Rate:
    """Stages one after the other; the last end stays.

    Raises:
        ConfigError: naming the stage.
    """
    pieces: list[tuple[int, int, Shape, float, float]] = []
    at, previous = 0, peak
    for i, values in enumerate(_given(stages)):
        field = f"schedule.stages[{i}]"
        stage = build(Stage, values, field)
        duration = steps_of(f"{field}.duration", stage.duration, steps, tokens_per_step)
        require(duration > 0, f"{field}.duration", stage.duration, "must be at least one step")
        start = _rate(field, "start", stage.start_lr, stage.start_lr_fraction, peak, previous)
        end = _rate(field, "end", stage.end_lr, stage.end_lr_fraction, peak)
        pieces.append((at, duration, stage.shape, start, end))
        at, previous = at + duration, end

    def rate(t: int) -> float:
        for begin, duration, shape, start, end in pieces:
            if t < begin + duration:
                return between(shape, start, end, (t - begin) / duration)
        return previous

    return rate


def sequenced(
    stages: Sequence[dict[str, Any]] | None,
    build_part: Callable[[str, dict[str, Any], float, int], Rate],
    *,
    peak: float,
    steps: int,
    tokens_per_step: int,
) -> Rate:
    """Whole schedules one after the other; the peak of each is where the one before ended.

    A stage is a `schedule` section with a `duration`; the last one has none and takes what is left.
    """
    stages = _given(stages)
    parts: list[tuple[int, int, Rate]] = []
    at = 0
    for i, values in enumerate(stages):
        field, rest = f"schedule.stages[{i}]", {k: v for k, v in values.items() if k != "duration"}
        if i == len(stages) - 1:
            require(
                "duration" not in values,
                f"{field}.duration",
                values.get("duration"),
                "the last stage takes what is left",
            )
            duration = steps - at
        else:
            require("duration" in values, f"{field}.duration", None, "is missing")
            duration = steps_of(f"{field}.duration", values["duration"], steps, tokens_per_step)
        require(
            duration > 0,
            f"{field}.duration",
            values.get("duration"),
            f"leaves {duration} steps for the stage",
        )
        part = build_part(field, rest, peak, duration)
        parts.append((at, at + duration, part))
        at, peak = at + duration, part(duration)

    def rate(t: int) -> float:
        for begin, end, part in parts:
            if t <= end:
                return part(t - begin)
        begin, _, part = parts[-1]
        return part(t - begin)

    return rate


def overridden(
    inner: Rate, values: dict[str, Any] | None, *, peak: float, steps: int, tokens_per_step: int
) -> Rate:
    """`inner`, or where `values` is given, `inner` with a decay that overrides it."""
    if values is None:
        return inner
    field = "schedule.override_decay"
    override = build(OverrideDecay, values, field)
    start = steps_of(f"{field}.start", override.start, steps, tokens_per_step)
    duration = steps_of(f"{field}.duration", override.duration, steps, tokens_per_step)
    require(duration > 0, f"{field}.duration", override.duration, "must be at least one step")
    end = _rate(field, "end", override.end_lr, override.end_lr_fraction, peak)

    def rate(t: int) -> float:
        if t < start:
            return inner(t)
        return between(override.shape, inner(start), end, min((t - start) / duration, 1.0))

    return rate


def _given(stages: Sequence[dict[str, Any]] | None) -> Sequence[dict[str, Any]]:
    if not stages:
        raise ConfigError("schedule.stages", None, "this schedule is made of stages", "List them")
    return stages


def _rate(
    field: str,
    which: str,
    rate: float | None,
    share: float | None,
    peak: float,
    default: float | None = None,
) -> float:
    both = rate is not None and share is not None
    require(
        not both,
        f"{field}.{which}_lr",
        rate,
        f"contradicts {which}_lr_fraction",
        "Give one of them",
    )
    if rate is not None:
        return rate
    if share is not None:
        return share * peak
    if default is None:
        raise ConfigError(
            f"{field}.{which}_lr", None, "is missing", f"Give {which}_lr or {which}_lr_fraction"
        )
    return default
