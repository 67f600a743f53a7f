"""Scores of a trial: the published one, and one that ranks damage.

The published score counts outliers of noise: it gave a ruined run 0.025 % and a healthy, noisy one
0.121 %. Damage is what the events cost: nats x steps above the frozen baseline, and for a level
that did not come back the offset for the rest of the run, both per 1,000 steps. Where events
overlap (those of a difference between runs lie over a run's own), a step counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ablate.spikes.events import Event
from ablate.spikes.references import olmo2_score
from ablate.spikes.robust import LARGEST

__all__ = ["score"]


def score(
    steps: Sequence[int] | NDArray[np.int64],
    losses: Sequence[float] | NDArray[np.float64],
    events: Sequence[Event],
    grad_norms: Sequence[float] | NDArray[np.float64] | None = None,
) -> dict[str, float | None]:
    """The scores of one record.

    Returns:
        `olmo2_score` and `olmo2_score_grad_norm` in per cent of rows, None where the record is
        too short for one window (it could not have seen anything); `damage_area` and
        `damage_offset` in nats x steps per 1,000 steps, `damage` their sum; counts of alarms,
        blips and rows that are not finite, and alarms per 1,000 rows.
    """
    at, loss = last_writes(steps, losses)
    finite = np.abs(loss) < LARGEST
    count = [e for e in events if not e.overwritten]
    alerts = [e for e in count if e.is_alert]
    span = max(1.0, float(at[-1] - at[0])) if len(at) > 1 else 1.0
    area, offset = _counted_once(_claims(alerts, float(at[-1]))) if len(at) else (0.0, 0.0)
    rows = max(1, len(loss))
    return {
        "olmo2_score": _published(loss[finite]),
        "olmo2_score_grad_norm": _grad(steps, grad_norms),
        "damage": 1000 * (area + offset) / span,
        "damage_area": 1000 * area / span,
        "damage_offset": 1000 * offset / span,
        "alerts": len(alerts),
        "alerts_per_1000_rows": 1000 * len(alerts) / rows,
        "unrecovered": sum(e.recovery == "unrecovered" for e in alerts),
        "blips": sum(e.kind == "blip" for e in count),
        "nonfinite_rows": int((~finite).sum()),
        "rows": len(loss),
    }


def last_writes(
    steps: Sequence[int] | NDArray[np.int64], values: Sequence[float] | NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Each step once, as it was written last, in order: what counts after rewinds."""
    at, x = np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64)
    if len(at) == 0:
        return at, x
    unique, from_end = np.unique(at[::-1], return_index=True)
    return unique, x[len(x) - 1 - from_end]


class _Claim(NamedTuple):
    """Damage that is laid to the steps from `start` to before `stop`, to each the same."""

    start: float
    stop: float
    total: float
    """Nats x steps."""
    is_offset: bool


def _claims(alerts: Sequence[Event], last: float) -> list[_Claim]:
    """Of each event its area; of one that did not recover the offset too, until the next alarm or
    the end of the run.
    """
    made = []
    for e in alerts:
        end = e.start if e.end is None else e.end
        made.append(_Claim(e.start, max(e.start, end) + 1, e.area or 0.0, False))
        if e.end is not None and e.residual and e.recovery == "unrecovered":
            until = min([last, *(float(f.start) for f in alerts if f.start > end)])
            left = max(0.0, e.residual) * max(0.0, until - end)
            made.append(_Claim(end + 1, max(end + 2, until), left, True))
    return sorted((c for c in made if c.total), key=lambda c: c.start)


def _counted_once(claims: Sequence[_Claim]) -> tuple[float, float]:
    """Nats x steps of areas and of offsets; of several claims to a step the highest counts."""
    sums = [0.0, 0.0]
    for group in _overlapping(claims):
        if len(group) == 1:
            sums[group[0].is_offset] += group[0].total
            continue
        for a, b in pairwise(sorted({edge for c in group for edge in (c.start, c.stop)})):
            there = [c for c in group if c.start <= a < c.stop]
            rate, is_offset = max((c.total / (c.stop - c.start), c.is_offset) for c in there)
            sums[is_offset] += rate * (b - a)
    return sums[0], sums[1]


def _overlapping(claims: Sequence[_Claim]) -> Iterator[list[_Claim]]:
    """Groups of claims, by their start, none of which shares a step with another group's."""
    group: list[_Claim] = []
    for claim in claims:
        if group and claim.start >= max(c.stop for c in group):
            yield group
            group = []
        group.append(claim)
    if group:
        yield group


def _published(values: NDArray[np.float64]) -> float | None:
    return olmo2_score(values) if len(values) > 1000 else None


def _grad(
    steps: Sequence[int] | NDArray[np.int64],
    norms: Sequence[float] | NDArray[np.float64] | None,
) -> float | None:
    if norms is None:
        return None
    _, x = last_writes(steps, norms)
    return _published(x[np.isfinite(x)])
