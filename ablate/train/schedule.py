"""Learning rate as a pure function of the step: OLMo's and OLMo-core's schedules under their own names.

Legend: t step (from 1), w warm-up, T end of the decay, p peak, a alpha_f. A schedule is `rate(t) -> float`;
nothing is stored, so a resumed trial needs no schedule state. The two families differ in small ways that are kept:

|              | OLMo (`olmo/optim.py`)                      | OLMo-core (`optim/scheduler.py`)            |
|--------------|---------------------------------------------|---------------------------------------------|
| warm-up from | p / 10                                      | 0                                           |
| inverse sqrt | p sqrt(w / max(w, t))                       | a p + (p - a p) sqrt(w / max(w, t))         |
| tail         | none                                        | linear to 0 over `decay`                    |
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from ablate.config.schema import ScheduleConfig, amount
from ablate.config.typed import closest, require
from ablate.errors import ConfigError
from ablate.train.imports import is_import_path, load_object

__all__ = ["SCHEDULES", "Horizon", "Rate", "bolt_on_warmup", "build_schedule"]

Rate = Callable[[int], float]


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

    def ramp(self, t: float, default: float, peak: float | None = None) -> float:
        """Straight line from the warm-up's start to the peak."""
        start = default if self.warmup_from is None else self.warmup_from
        top = self.peak if peak is None else peak
        return start + (top - start) * min(t, self.warmup) / self.warmup

    def progress(self, t: float) -> float:
        """Share of the decay that is done: 0 at the end of warm-up, 1 at `end` and after."""
        return 1.0 if t >= self.end else (t - self.warmup) / (self.end - self.warmup)


def build_schedule(config: ScheduleConfig, *, peak: float, steps: int, tokens_per_step: int) -> Rate:
    """The schedule that `config` names, for a trial of `steps` steps.

    Raises:
        ConfigError: for an unknown name, or lengths that do not fit into the trial.
    """
    lengths = {
        name: _steps(f"schedule.{name}", getattr(config, name), steps, tokens_per_step)
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
        return load_object("schedule.name", config.name)(config, horizon)
    if config.name not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise ConfigError("schedule.name", config.name, f"must be one of {known}", closest(config.name, SCHEDULES))
    return SCHEDULES[config.name](config, horizon)


def _steps(field: str, value: str | int | float, steps: int, tokens_per_step: int) -> int:
    kind, number = amount(field, value)
    if kind == "fraction":
        return round(number * steps)
    return round(number / tokens_per_step) if kind == "tokens" else int(number)


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

    def rate(t: float) -> float:
        p = h.progress(t)
        return floor + (1 - p) * (h.peak - floor) * (1 + math.cos(math.pi * p)) / 2

    return rate


def _max(c: ScheduleConfig, h: Horizon) -> Rate:
    """The higher of cosine and inverse square root, warm-up included."""
    cosine, root = _olmo(_cosine)(c, h), _olmo(_inverse_sqrt)(c, h)
    return lambda t: max(cosine(t), root(t))


def bolt_on_warmup(inner: Rate, start: int, end: int) -> Rate:
    """0 before `start`, a straight line to inner(end), then `inner`: after the optimiser was reset at `start`."""

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
        require(
            h.warmup + h.decay <= h.steps,
            "schedule.decay",
            c.decay,
            f"warm-up ({h.warmup} steps) and decay ({h.decay}) exceed the {h.steps} steps of the trial",
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
    """p (t / w)^b: independent of the horizon (arXiv 2408.13359)."""
    _needs_warmup(c, h)
    return lambda t: h.peak * (t / h.warmup) ** c.exponent


def _exponential(c: ScheduleConfig, h: Horizon) -> Rate:
    """Rises from `lr_min` to the peak at `end`: a learning-rate range test."""
    low = c.alpha_f * h.peak if c.lr_min is None else c.lr_min
    require(low > 0, "schedule.lr_min", low, "must be greater than 0 for exponential")
    return lambda t: h.peak if t >= h.end else low * (h.peak / low) ** (t / h.end)


def _wsds(c: ScheduleConfig, h: Horizon) -> Rate:
    """Warm-up once, then every period is stable and decays to `lr_min` (or 0) at its end (arXiv 2410.05192).

    As fractions, `warmup` is of the first period and `decay` of each.
    """
    ends = c.periods or [h.steps]
    starts = [0, *ends[:-1]]
    ok = all(a < b for a, b in zip(starts, ends, strict=True))
    require(ok, "schedule.periods", c.periods, "must be rising numbers of steps")
    warmup = _steps("schedule.warmup", c.warmup, ends[0], h.tokens_per_step)
    decays = [
        _steps("schedule.decay", c.decay, b - a, h.tokens_per_step) for a, b in zip(starts, ends, strict=True)
    ]
    low, ramp = c.lr_min or 0.0, dataclasses.replace(h, warmup=warmup)
    for a, b, decay, first in zip(starts, ends, decays, [warmup] + [0] * len(ends), strict=False):
        reason = f"does not fit into the period of steps {a} to {b}"
        require(first + decay <= b - a, "schedule.decay", c.decay, reason)

    def rate(t: int) -> float:
        if t < warmup:
            return ramp.ramp(t, 0.0)
        if t > ends[-1]:
            return low
        k = bisect.bisect_left(ends, t)
        left = ends[k] - t
        return h.peak if left >= decays[k] else low + (h.peak - low) * left / decays[k]

    return rate


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
}
