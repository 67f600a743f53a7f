"""The drift arm: level shifts and slow divergence that no single row shows.

Every 8 accepted rows the midmean of the last 32 (the mean of their middle half) is taken, and two
questions are asked of such levels:

- deep: does the newest lie far above the three lowest of the last 48 (the newest four left out)?
- wide: do the newest 64 rows lie above the 256 before them? Averaging so many shows a shift of
  half a standard deviation of a row.

The scale is the MAD of the differences of levels over 32 rows, so that autocorrelation is priced
in; it looks back 80 levels, so that the beginning of a drift does not hide the rest. One alarm an
event; it ends when the level is back, or after 400 rows as a level shift or a drift.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from math import sqrt
from typing import Any

from ablate.spikes.events import Event
from ablate.spikes.excursion import CHECK, Excursion, restore
from ablate.spikes.robust import MAD_TO_SIGMA, mad, mean, midmean

__all__ = ["DriftArm"]

ROWS, EVERY, KEPT, RECENT, NEWEST, LOWEST, LAG = 32, 8, 80, 48, 4, 3, 4
THRESHOLD = 13.0
SPAN = 64
"""Rows that the wide question asks about: the newest levels that do not overlap, two of them."""
BEFORE = 8
"""Levels of 32 rows before those that they are compared with."""
WIDE = 3.5
"""Standard deviations of the difference of the two means."""
INDEPENDENT = 1.1 / sqrt(ROWS)
"""Standard deviation of the midmean of independent normal rows, in theirs."""
CHANGES = MAD_TO_SIGMA / sqrt(2)
"""Standard deviation of a level in units of the MAD of the changes of levels."""
NEIGHBOURS = INDEPENDENT * CHANGES * sqrt(EVERY)
"""The same in units of the MAD of the changes of means of 8 rows."""
DIFFERENCE = sqrt(ROWS / SPAN + 1 / BEFORE)
"""Standard deviation of the difference of the two means, in that of one level."""
BACK = 0.5
"""The event is over where the level has fallen under this share of the threshold."""
LEAST = 12
"""Levels that are needed before anything is judged."""
LEAST_WIDE = LAG * (BEFORE + 1)


def reference(levels: list[float]) -> tuple[float, float]:
    """(level to compare with, scale of its changes) from at least LEAST levels, oldest first."""
    lowest = sorted(levels[-RECENT:-NEWEST])[:LOWEST]
    changes = [b - a for a, b in zip(levels, levels[LAG:], strict=False)]
    return mean(lowest), mad(changes)


def spread(sigma: float, blocks: list[float], scale: float) -> float:
    """Standard deviation of the difference between SPAN rows' level and that of those before.

    Args:
        sigma: of single rows. If they were independent, nothing else would be needed.
        blocks: means of 8 rows each, which show what neighbouring rows share.
        scale: MAD of the changes of levels over 32 rows. It shows what longer stretches share, but
            there are few of them: the geometric mean with the others halves its noise.
    """
    changes = [b - a for a, b in pairwise(blocks)]
    one = max(INDEPENDENT * sigma, NEIGHBOURS * mad(changes))
    return DIFFERENCE * sqrt(one * max(one, CHANGES * scale))


def change(rows: Iterable[tuple[int, int, float]], between: float) -> int:
    """Where a step of the level across `between` is likeliest: the lowest point of the sum."""
    total, lowest, at, i = 0.0, 0.0, 0, 0
    for i, (_, _, value) in enumerate(rows):
        total += value - between
        if total < lowest:
            lowest, at = total, i + 1
    return min(at, i)


class DriftArm:
    """Sees accepted rows only, so that a spike of the fast arm is not seen twice."""

    def __init__(self) -> None:
        self.rows: deque[tuple[int, int, float]] = deque(maxlen=SPAN)
        self.levels: deque[float] = deque(maxlen=KEPT)
        self.blocks: deque[float] = deque(maxlen=KEPT)
        """Means of the 8 rows that each level brought."""
        self.count = 0
        self.since = 0
        """Levels since the last alarm. What an event leaves behind is no level to compare with."""
        self.open: Excursion | None = None
        self.wide = False
        """Which question the open event was the answer to."""
        self.limit = 0.0
        self.reference = 0.0

    def update(self, row: int, step: int, value: float, stride: int, sigma: float) -> list[Event]:
        """Takes in an accepted row; `sigma` is the fast arm's."""
        self.rows.append((row, step, value))
        self.count += 1
        if self.open is not None:
            self.open.add(row, step, value, stride)
        if self.count % EVERY or len(self.rows) < ROWS:
            return []
        values = [v for _, _, v in self.rows]
        level = midmean(values[-ROWS:])
        if self.open is not None:
            return self._continue(self.open, midmean(values) if self.wide else level, level)
        events = []
        if len(self.levels) >= LEAST:
            events = self._judge(level, sigma)
        if self.open is None:
            self._keep(level)
            self.since += 1
        return events

    def _keep(self, level: float) -> None:
        self.levels.append(level)
        self.blocks.append(mean([v for _, _, v in self.rows][-EVERY:]))

    def _judge(self, level: float, sigma: float) -> list[Event]:
        levels = list(self.levels)
        self.reference, scale = reference(levels)
        self.limit = THRESHOLD * max(scale, sigma / 8)
        if level - self.reference > self.limit > 0:
            bound = self.reference + 0.5 * self.limit
            over = [i for i, (_, _, v) in enumerate(self.rows) if v > bound]
            over = [i for i in over if i >= len(self.rows) - ROWS]
            return self._begin(over[0] if over else -1, sigma or scale * MAD_TO_SIGMA)
        if self.since < LEAST_WIDE or len(self.rows) < SPAN:
            return []
        now = mean([level, levels[-LAG]])
        before = mean(levels[-LAG * 2 : -LAG * (BEFORE + 1) - 1 : -LAG])
        if now - before <= WIDE * DIFFERENCE * INDEPENDENT * sigma:  # no need to know more
            return []
        limit = WIDE * spread(sigma, list(self.blocks), scale)
        if not now - before > limit > 0:
            return []
        self.reference, self.limit, self.wide = before, limit, True
        return self._begin(change(self.rows, 0.5 * (before + now)), sigma)

    def _begin(self, first: int, sigma: float) -> list[Event]:
        """Opens an event at this one of the rows at hand."""
        rows = list(self.rows)
        (start_row, start, _), (row, step, _) = rows[first], rows[-1]
        self.open = event = Excursion(
            detector="drift",
            baseline=self.reference,
            sigma=sigma,
            start=start,
            start_row=start_row,
            end=step,
            end_row=row,
        )
        steps = [s for _, s, _ in rows]
        for (r, s, v), before in zip(rows[1:], steps, strict=False):
            if r >= start_row:
                event.add(r, s, v, max(1, s - before))
        event.alarm(row, step)
        event.kind = "drift"
        return [event.event(closed=False)]

    def _continue(self, event: Excursion, level: float, newest: float) -> list[Event]:
        if level - self.reference < BACK * self.limit:
            self.open, self.wide, self.since = None, False, 0
            self._keep(newest)
            event.kind = "spike"
            return [event.event(closed=True)]
        if self.wide:  # rows over 3 sigma are no sign of such an event's end
            event.end_row, event.end, _ = self.rows[-1]
        if event.rows < CHECK:
            return []
        rising, huge = event.rising(), event.huge()
        event.kind = "divergence" if huge else "drift" if rising else "level_shift"
        self.restart()
        return [event.event(closed=True, recovered=False)]

    def restart(self) -> list[Event]:
        """Forgets the levels; what is open ends here."""
        events = self.finish() if self.open is not None and self.open.rows < CHECK else []
        self.open, self.wide = None, False
        self.rows.clear()
        self.levels.clear()
        self.blocks.clear()
        self.count = self.since = 0
        return events

    def finish(self) -> list[Event]:
        event, self.open, self.wide = self.open, None, False
        return [] if event is None else [event.event(closed=True, recovered=False)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": [list(r) for r in self.rows],
            "levels": list(self.levels),
            "blocks": list(self.blocks),
            "count": self.count,
            "since": self.since,
            "open": self.open and self.open.state_dict(),
            "wide": self.wide,
            "limit": self.limit,
            "reference": self.reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = deque([(r, s, v) for r, s, v in state["rows"]], maxlen=SPAN)
        self.levels = deque(state["levels"], maxlen=KEPT)
        self.blocks = deque(state.get("blocks", ()), maxlen=KEPT)  # not in states of old
        self.count, self.open = state["count"], restore(state["open"])
        self.since, self.wide = state.get("since", 0), state.get("wide", False)
        self.limit, self.reference = state["limit"], state["reference"]
