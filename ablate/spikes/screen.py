"""Calm stretches of a whole record at once: what the detector would do row by row, vectorised.

Most rows of a record open nothing. For a stretch of them every quantity of both arms is a function
of fixed windows, so it is computed for all rows together, by the same arithmetic in the same order;
the stretch ends before the first row at which anything would happen, and that row goes through
`Detector.update`. The state after it is the state that `update` would have left, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ablate.spikes import drift as slow
from ablate.spikes import fast as quick
from ablate.spikes.baseline import AHEAD, EARLY, HALF, REFRESH, WINDOW
from ablate.spikes.excursion import AFTER
from ablate.spikes.robust import LARGEST, MAD_TO_SIGMA

if TYPE_CHECKING:
    from ablate.spikes.detector import Detector

__all__ = ["SHORTEST", "calm_rows", "is_calm"]

SHORTEST = 24
"""Rows under which a stretch is quicker one by one."""

Array = NDArray[np.float64]


def is_calm(detector: Detector) -> bool:
    """Whether nothing is going on that the stretch would have to follow."""
    base, record = detector.fast.baseline, detector.record
    return (
        detector.calm
        and detector.fast.primed is None
        and base.count >= EARLY
        and len(base.values) == len(base.residuals) == WINDOW
        and base.sigma > 0
        and len(detector.drift.rows) == slow.SPAN
        and record.is_regular
    )


def calm_rows(
    detector: Detector,
    steps: NDArray[np.int64],
    losses: Array,
    columns: Mapping[str, Sequence[float]],
) -> int:
    """Takes in the calm rows that these begin with; returns how many they were.

    Args:
        detector: `is_calm`.
        steps: of the next rows.
        losses: of the next rows.
        columns: the other signals of the next rows.
    """
    n = _regular(detector, steps, losses, columns)
    if n < SHORTEST:
        return 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _take(detector, steps[:n], losses[:n], columns)


def _regular(
    detector: Detector,
    steps: NDArray[np.int64],
    losses: Array,
    columns: Mapping[str, Sequence[float]],
) -> int:
    """Rows before the first that is not finite, breaks the stride, or jumps in learning rate."""
    n, settling, record = len(steps), detector.fast.settling, detector.record
    if settling is not None:
        n = min(n, AFTER - 1 - len(settling.after))
    if n < SHORTEST or record.last is None:
        return 0
    odd = ~(np.abs(losses[:n]) < LARGEST)
    odd |= np.diff(steps[:n], prepend=record.last) != record.usual
    for name in detector.RATES:
        if name in columns:
            rate = np.asarray(columns[name][:n], dtype=np.float64)
            before = np.concatenate(([np.nan if detector.rate is None else detector.rate], rate))
            odd |= detector.jumps(rate, before[:-1])
    return _first(odd)


def _first(flags: NDArray[np.bool_]) -> int:
    """Where the first is, or how many there are."""
    return int(flags.argmax()) if flags.any() else len(flags)


def _take(
    detector: Detector,
    steps: NDArray[np.int64],
    x: Array,
    columns: Mapping[str, Sequence[float]],
) -> int:
    fast, drift, base, n = detector.fast, detector.drift, detector.fast.baseline, len(x)
    values = np.concatenate((np.asarray(base.values), x))
    # Medians of 16 rows, by the row behind the window; forecasts for row j and for the one after.
    medians = _middle(np.sort(sliding_window_view(values[WINDOW - 2 * HALF :], HALF), axis=1))
    lagged, newest = medians[: n + 1], medians[HALF : n + 1 + HALF]
    slope = (newest - lagged) / HALF
    forecast = np.where(slope < 0, newest + AHEAD * slope, newest)
    residuals = np.concatenate((np.asarray(base.residuals), x - forecast[:n]))

    measured = np.arange((-base.count - 1) % REFRESH, n, REFRESH)
    """Rows after which sigma is renewed."""
    sigmas, quanta = _sigmas(residuals, values, measured)
    renewed = np.searchsorted(measured, np.arange(n + 1))
    """How often it was renewed before row j."""
    sigma = np.concatenate(([base.sigma], sigmas))[renewed]

    z = (x - forecast[:n]) / sigma[:n]
    shift = _cusum(fast.shift, (x - lagged[:n]) / sigma[:n], 4.0, quick.SHIFT_K)
    burst = _cusum(fast.burst, z, quick.OPEN, quick.BURST_K)
    opens = (z > quick.OPEN) | (shift[1:] > quick.SHIFT_H) | (burst[1:] > quick.BURST_H)
    dead = (sigma[1:] <= 0) | ~np.isfinite(forecast[1:])  # all rows equal: left to the slow path
    n = _first(opens | dead)
    levels = _Levels(drift, x[:n], sigma[1 : n + 1])
    n = min(n, levels.rows)
    if n < SHORTEST:
        return 0

    at, row = int(renewed[n]), detector.row + 1

    def place(i: int) -> tuple[int, int]:
        return row + i, int(steps[i])

    base.jump(
        values[n : n + WINDOW].tolist(),
        residuals[n : n + WINDOW].tolist(),
        count=base.count + n,
        sigma=float(sigma[n]),
        quantum=float(([0.0, *quanta[:at][quanta[:at] > 0]])[-1]),
    )
    fast.shift, fast.burst = int(shift[n]), int(burst[n])
    rises = np.flatnonzero((shift[:n] == 0) & (shift[1 : n + 1] > 0))
    if len(rises):
        fast.rise = place(int(rises[-1]))
    high = np.flatnonzero(z[:n] > quick.LEAD)[-4:].tolist()
    fast.lead = [*fast.lead, *map(place, high)][-4:]
    if fast.settling is not None:
        fast.settling.after.extend(x[:n].tolist())
    newest = range(max(0, n - slow.SPAN), n)
    levels.commit(drift, n, [(*place(i), float(x[i])) for i in newest])
    detector.took(steps[:n], x[:n], columns)
    return n


def _middle(ordered: Array) -> Array:
    """Medians of rows of an even number of sorted values."""
    half = ordered.shape[1] // 2
    return (ordered[:, half - 1] + ordered[:, half]) * 0.5


def _mad(rows: Array) -> Array:
    centre = _middle(np.sort(rows, axis=1))
    return _middle(np.sort(np.abs(rows - centre[:, None]), axis=1))


def _sigmas(residuals: Array, values: Array, measured: NDArray[np.int64]) -> tuple[Array, Array]:
    """(sigma, quantum of the losses or 0) after each of the rows `measured`."""
    if len(measured) == 0:
        return np.zeros(0), np.zeros(0)
    rows = sliding_window_view(residuals, WINDOW)[1:][measured]
    steps = np.diff(np.sort(sliding_window_view(values, WINDOW)[1:][measured], axis=1), axis=1)
    distinct = 1 + np.count_nonzero(steps, axis=1)
    quantised = (distinct >= 2) & (2 * distinct <= WINDOW)
    steps[steps == 0] = np.inf
    quanta = np.where(quantised, steps.min(axis=1), 0.0)
    sigma = MAD_TO_SIGMA * _mad(rows)
    return np.where(sigma < quanta, quanta, sigma), quanta


def _cusum(before: int, z: Array, high: float, k: int) -> NDArray[np.int64]:
    """`fast.cusum` before the first row and after each."""
    moves = (np.clip(z, -3.0, high) * quick.UNIT).astype(np.int64) - k
    total = before + np.cumsum(moves)
    lowest = np.minimum(np.minimum.accumulate(total), 0)
    return np.concatenate(([before], total - lowest))


class _Levels:
    """The drift arm over a stretch: its levels, and the row before which it would open."""

    def __init__(self, drift: slow.DriftArm, x: Array, sigma: Array) -> None:
        self.start, self.rows = drift.count, len(x)
        self.at = np.arange((-drift.count - 1) % slow.EVERY, len(x), slow.EVERY)
        """Rows after which a level is taken."""
        self.levels = self.blocks = self.references = self.limits = np.zeros(0)
        if len(self.at) == 0:
            return
        newest = [v for _, _, v in drift.rows][-slow.ROWS :]
        values = np.concatenate((newest, x))
        windows = sliding_window_view(values, slow.ROWS)[1:][self.at]
        self.levels = _midmean(windows)
        self.blocks = _mean(windows[:, -slow.EVERY :].T)
        first = max(0, slow.LEAST - len(drift.levels))
        if first >= len(self.at):
            return
        known = np.concatenate((np.asarray(drift.levels), self.levels[:-1]))
        if len(drift.levels) == slow.KEPT:
            older = sliding_window_view(known, slow.KEPT)
            self.references, scales = _references(older)
        else:
            count = len(drift.levels)
            pairs = [
                slow.reference(known[max(0, count + i - slow.KEPT) : count + i].tolist())
                for i in range(first, len(self.at))
            ]
            self.references, scales = np.array(pairs).T
        sigma = sigma[self.at[first:]]
        self.limits = slow.THRESHOLD * np.maximum(scales, sigma / 8)
        over = (self.levels[first:] - self.references > self.limits) & (self.limits > 0)
        over |= self._wide(drift, first, scales, sigma)
        if over.any():
            self.rows = int(self.at[first + over.argmax()])
        self.first = first

    def _wide(
        self, drift: slow.DriftArm, first: int, scales: Array, sigma: Array
    ) -> NDArray[np.bool_]:
        """Where the wide question would be answered with yes, from level `first` on."""
        known = np.concatenate((np.asarray(drift.levels), self.levels))
        index = np.arange(first, len(self.levels))
        index = index[drift.since + index >= slow.LEAST_WIDE]
        at = len(drift.levels) + index
        now = _mean([known[at], known[at - slow.LAG]])
        before = _mean([known[at - slow.LAG * (2 + i)] for i in range(slow.BEFORE)])
        least = slow.WIDE * slow.DIFFERENCE * slow.INDEPENDENT * sigma[index - first]
        out = np.zeros(len(scales), dtype=bool)
        blocks = [*drift.blocks, *self.blocks.tolist()]
        for i in np.flatnonzero(now - before > least):
            j = int(index[i])
            older = blocks[max(0, len(drift.blocks) + j - slow.KEPT) : len(drift.blocks) + j]
            limit = slow.WIDE * slow.spread(
                float(sigma[j - first]), older, float(scales[j - first])
            )
            out[j - first] = now[i] - before[i] > limit > 0
        return out

    def commit(self, drift: slow.DriftArm, n: int, rows: list[tuple[int, int, float]]) -> None:
        taken = int(np.searchsorted(self.at, n))
        drift.rows.extend(rows)
        drift.count += n
        drift.since += taken
        drift.levels.extend(self.levels[:taken].tolist())
        drift.blocks.extend(self.blocks[:taken].tolist())
        if len(self.limits) and taken > self.first:
            drift.reference = float(self.references[taken - self.first - 1])
            drift.limit = float(self.limits[taken - self.first - 1])


def _mean(columns: Sequence[Array] | Array) -> Array:
    """`robust.mean`, in its order of additions."""
    total = np.zeros(len(columns[0]))
    for column in columns:
        total = total + (column - columns[0])
    return columns[0] + total / len(columns)


def _midmean(rows: Array) -> Array:
    ordered = np.sort(rows, axis=1)
    quarter = rows.shape[1] // 4
    return _mean(ordered[:, quarter : rows.shape[1] - quarter].T)


def _references(older: Array) -> tuple[Array, Array]:
    """`drift.reference` for each row of levels."""
    recent = older[:, slow.KEPT - slow.RECENT : slow.KEPT - slow.NEWEST]
    lowest = np.sort(recent, axis=1)[:, : slow.LOWEST]
    differences = older[:, slow.LAG :] - older[:, : -slow.LAG]
    return _mean(lowest.T), _mad(differences)
