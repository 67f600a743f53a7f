"""Scores of a trial: the published one, and one that ranks damage.

The published score counts outliers of noise: it gave a ruined run 0.025 % and a healthy, noisy one
0.121 %. Damage is what the events cost: nats x steps above the frozen baseline, and for a level
that did not come back the offset for the rest of the run, both per 1,000 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    area = sum(e.area or 0.0 for e in alerts)
    offset = sum(_left(e, alerts, float(at[-1])) for e in alerts) if len(at) else 0.0
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


def _left(event: Event, alerts: Sequence[Event], last: float) -> float:
    """Nats x steps of the offset after an event, until the next alarm or the end of the run."""
    if event.end is None or not event.residual or event.recovery != "unrecovered":
        return 0.0
    later = [float(e.start) for e in alerts if e.start > event.end]
    return max(0.0, event.residual) * max(0.0, min([last, *later]) - event.end)


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
