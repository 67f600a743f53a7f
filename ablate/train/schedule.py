"""Learning rate as a pure function of the step: OLMo's and OLMo-core's schedules by name.

Legend: t step (from 1), w warm-up, T end of the decay, p peak, a alpha_f. A schedule is a function
`rate(t) -> float`, so a resumed trial needs no state of it. The two families differ, and stay so:

|              | OLMo                  | OLMo-core                            |
|--------------|-----------------------|--------------------------------------|
| warm-up from | p / 10                | 0                                    |
| inverse sqrt | p sqrt(w / max(w, t)) | a p + (p - a p) sqrt(w / max(w, t))  |
| tail         | none                  | linear to 0 over the last `decay`    |
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ablate.config.imports import is_import_path, unknown, users_own
from ablate.config.schema import ScheduleConfig
from ablate.config.typed import build, require
from ablate.train.own_schedule import own_shape
from ablate.train.stages import Rate, composed, overridden, sequenced, steps_of

__all__ = ["SCHEDULES", "Horizon", "Rate", "bolt_on_warmup", "build_schedule", "warmup_steps"]


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """What a schedule needs to know besides its own fields, with lengths in steps."""

    peak: float
    steps: int
    """Steps of the trial."""
    warmup: int
    decay: int
    end: int
    """Where a decay over the whole run ends: `t_max`, or `steps`."""
    warmup_from: float | None = None
    """None: the family's own default."""
    tokens_per_step: int = 1

    def ramp(self, t: int, default: float, peak: float | None = None) -> float:
        """Straight line from the warm-up's start to the peak."""
        start = default if self.warmup_from is None else self.warmup_from
        top = self.peak if peak is None else peak
        return start + (top - start) * min(t, self.warmup) / self.warmup

    def progress(self, t: int) -> float:
        """Share of the decay that is done: 0 at the end of warm-up, 1 at `end` and after."""
        return 1.0 if t >= self.end else (t - self.warmup) / (self.end - self.warmup)


def build_schedule(
    config: ScheduleConfig, *, peak: float, steps: int, tokens_per_step: int
) -> Rate:
    """The schedule that `config` names, for a trial of `steps` steps.

    Raises:
        ConfigError: for an unknown name, or lengths that do not fit into the trial.
    """
    lengths = {
        name: steps_of(f"schedule.{name}", getattr(config, name), steps, tokens_per_step)
        for name in ("warmup", "decay")
    }
    horizon = Horizon(
        peak=peak,
        steps=steps,
        end=config.t_max or steps,
        warmup_from=config.warmup_min_lr,
        tokens_per_step=tokens_per_step,
        **lengths,
    )
    if is_import_path(config.name):
        shape = own_shape(config.name)
    elif config.name in SCHEDULES:
        shape = SCHEDULES[config.name]
    else:
        raise unknown("schedule.name", config.name, SCHEDULES)
    budget = {"peak": peak, "steps": steps, "tokens_per_step": tokens_per_step}
    with users_own("schedule.name", config.name):
        return overridden(shape(config, horizon), config.override_decay, **budget)


def warmup_steps(config: ScheduleConfig, *, steps: int, tokens_per_step: int) -> int:
    """The step at which warm-up ends."""
    if config.name == "wsds" and config.periods:
        steps = config.periods[0]
    return steps_of("schedule.warmup", config.warmup, steps, tokens_per_step)


# ---- after warm-up: OLMo

_Shape = Callable[[ScheduleConfig, Horizon], Rate]


def _olmo(shape: _Shape) -> _Shape:
    """Warm-up from a tenth of the peak, then `shape`."""

    def schedule(c: ScheduleConfig, h: Horizon) -> Rate:
        after = shape(c, h)
        return lambda t: h.ramp(t, 0.1 * h.peak) if t < h.warmup else after(t)

    return schedule


def _cosine(c: ScheduleConfig, h: Horizon) -> Rate:
    floor = c.alpha_f * h.peak
    return lambda t: floor + (h.peak - floor) * (1 + math.cos(math.pi * h.progress(t))) / 2


def _linear(c: ScheduleConfig, h: Horizon) -> Rate:
    floor = c.alpha_f * h.peak
    return lambda t: h.peak - (h.peak - floor) * h.progress(t)


def _inverse_sqrt(c: ScheduleConfig, h: Horizon) -> Rate:
    _needs_warmup(c, h)
    return lambda t: h.peak * math.sqrt(h.warmup / max(h.warmup, t))


def _constant(c: ScheduleConfig, h: Horizon) -> Rate:
    return lambda t: h.peak


def _envelope(c: ScheduleConfig, h: Horizon) -> Rate:
    """A cosine under a straight line."""
    floor = c.alpha_f * h.peak

    def rate(t: int) -> float:
        p = h.progress(t)
        return floor + (1 - p) * (h.peak - floor) * (1 + math.cos(math.pi * p)) / 2

    return rate


def _max(c: ScheduleConfig, h: Horizon) -> Rate:
    """The higher of cosine and inverse square root, warm-up included."""
    cosine, root = _olmo(_cosine)(c, h), _olmo(_inverse_sqrt)(c, h)
    return lambda t: max(cosine(t), root(t))


def bolt_on_warmup(inner: Rate, start: int, end: int) -> Rate:
    """0 before `start`, a line to inner(end), then `inner`: for an optimiser reset at `start`."""

    def rate(t: int) -> float:
        if t < start:
            return 0.0
        return inner(end) * (t - start) / (end - start) if t < end else inner(t)

    return rate


# ---- after warm-up: OLMo-core


def _core(shape: _Shape) -> _Shape:
    """Warm-up from 0, then `shape`."""

    def schedule(c: ScheduleConfig, h: Horizon) -> Rate:
        after = shape(c, h)
        return lambda t: h.ramp(t, 0.0) if t < h.warmup else after(t)

    return schedule


def _tailed(schedule: _Shape) -> _Shape:
    """`schedule`, cut short by a straight line to `lr_min` (or 0) over the last `decay` steps."""

    def tailed(c: ScheduleConfig, h: Horizon) -> Rate:
        if h.decay == 0:
            return schedule(c, h)
        require(
            h.warmup + h.decay <= h.steps,
            "schedule.decay",
            c.decay,
            f"warm-up ({h.warmup} steps) and decay ({h.decay}) exceed the trial's {h.steps} steps",
        )
        before, start, low = schedule(c, h), h.steps - h.decay, c.lr_min or 0.0

        def rate(t: int) -> float:
            if t <= start:
                return before(t)
            left = max(h.steps - t, 0) / h.decay
            return low + (before(start) - low) * left

        return rate

    return tailed


def _inv_sqrt(c: ScheduleConfig, h: Horizon) -> Rate:
    _needs_warmup(c, h)
    floor = c.alpha_f * h.peak
    return lambda t: floor + (h.peak - floor) * math.sqrt(h.warmup / max(h.warmup, t))


def _half_cosine(c: ScheduleConfig, h: Horizon) -> Rate:
    """The second half of the cosine from the peak to the floor; warm-up ends at their midpoint."""
    floor = c.alpha_f * h.peak
    middle = (h.peak + floor) / 2

    def rate(t: int) -> float:
        if t < h.warmup:
            return h.ramp(t, 0.0, middle)
        return floor + (h.peak - floor) * (1 + math.cos(math.pi * (1 + h.progress(t)) / 2)) / 2

    return rate


def _power(c: ScheduleConfig, h: Horizon) -> Rate:
    """The peak times (t / w)^b: independent of the horizon (arXiv 2408.13359)."""
    _needs_warmup(c, h)
    return lambda t: h.peak * (t / h.warmup) ** c.exponent


def _exponential(c: ScheduleConfig, h: Horizon) -> Rate:
    """Rises from `lr_min` to the peak at `end`: a learning-rate range test."""
    low = c.alpha_f * h.peak if c.lr_min is None else c.lr_min
    require(low > 0, "schedule.lr_min", low, "must be greater than 0 for exponential")
    return lambda t: h.peak if t >= h.end else low * (h.peak / low) ** (t / h.end)


def _wsds(c: ScheduleConfig, h: Horizon) -> Rate:
    """Warm-up once; each period is stable, then decays to `lr_min` or 0 (arXiv 2410.05192).

    As fractions, `warmup` is of the first period and `decay` of each.
    """
    ends = c.periods or [h.steps]
    starts = [0, *ends[:-1]]
    rising = all(a < b for a, b in zip(starts, ends, strict=True))
    require(rising, "schedule.periods", c.periods, "must be rising numbers of steps")
    shares = c.period_lr_multipliers or [1.0] * len(ends)
    reason = f"must have one number for each of the {len(ends)} periods"
    require(len(shares) == len(ends), "schedule.period_lr_multipliers", shares, reason)
    warmup = steps_of("schedule.warmup", c.warmup, ends[0], h.tokens_per_step)
    decays = [
        steps_of("schedule.decay", c.decay, b - a, h.tokens_per_step)
        for a, b in zip(starts, ends, strict=True)
    ]
    for a, b, decay in zip(starts, ends, decays, strict=True):
        reason = f"does not fit into the period of steps {a} to {b}"
        require((warmup if a == 0 else 0) + decay <= b - a, "schedule.decay", c.decay, reason)
    low, ramp = c.lr_min or 0.0, dataclasses.replace(h, warmup=warmup)

    def rate(t: int) -> float:
        if t < warmup:
            return ramp.ramp(t, 0.0, shares[0] * h.peak)
        if t > ends[-1]:
            return low
        k = bisect.bisect_left(ends, t)
        left, top = ends[k] - t, shares[k] * h.peak
        return top if left >= decays[k] else low + (top - low) * left / decays[k]

    return rate


def _composable(c: ScheduleConfig, h: Horizon) -> Rate:
    return composed(c.stages, peak=h.peak, steps=h.steps, tokens_per_step=h.tokens_per_step)


def _sequential(c: ScheduleConfig, h: Horizon) -> Rate:
    def part(field: str, values: dict[str, Any], peak: float, steps: int) -> Rate:
        section = build(ScheduleConfig, values, field)
        return build_schedule(section, peak=peak, steps=steps, tokens_per_step=h.tokens_per_step)

    return sequenced(c.stages, part, peak=h.peak, steps=h.steps, tokens_per_step=h.tokens_per_step)


def _needs_warmup(c: ScheduleConfig, h: Horizon) -> None:
    require(h.warmup > 0, "schedule.warmup", c.warmup, f"must be at least one step for {c.name}")


SCHEDULES: dict[str, _Shape] = {
    # OLMo; the names that both families use mean OLMo's (warmup_min_lr=0 gives OLMo-core's)
    "constant": _constant,
    "constant_with_warmup": _olmo(_constant),
    "linear_with_warmup": _olmo(_linear),
    "cosine_with_warmup": _olmo(_cosine),
    "inverse_sqrt_with_warmup": _olmo(_inverse_sqrt),
    "cosine_linear_envelope": _olmo(_envelope),
    "max_scheduler": _max,
    # OLMo-core
    "cos_with_warmup": _core(_cosine),
    "half_cos_with_warmup": _half_cosine,
    "inv_sqrt_with_warmup": _core(_inv_sqrt),
    "cos_with_warmup_and_linear_decay": _tailed(_core(_cosine)),
    "wsd": _tailed(_core(_constant)),
    "wsds": _wsds,
    "power_lr": _tailed(_core(_power)),
    "exponential": _exponential,
    "composable": _composable,
    "sequential": _sequential,
}
