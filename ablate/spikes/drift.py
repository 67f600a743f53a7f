"""The drift arm: level shifts and slow divergence that no single row shows.

Every 8 accepted rows the midmean of the last 32 (the mean of their middle half) is compared with
the mean of the three lowest of the last 48 such levels, the newest four left out. The scale is the
MAD of their differences over 32 rows, so that autocorrelation is priced in; it looks back 80
levels, so that the beginning of a drift does not hide the rest. One alarm an event; it ends when
the level is back, or after 400 rows as a level shift or a drift.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ablate.spikes.events import Event
from ablate.spikes.excursion import CHECK, Excursion, restore
from ablate.spikes.robust import MAD_TO_SIGMA, mad, mean, midmean

__all__ = ["DriftArm"]

ROWS, EVERY, KEPT, RECENT, NEWEST, LOWEST, LAG = 32, 8, 80, 48, 4, 3, 4
THRESHOLD = 13.0
BACK = 0.5
"""The event is over where the level has fallen under this share of the threshold."""
LEAST = 12
"""Levels that are needed before anything is judged."""
SHARP = 40
"""Rows from start to alarm under which a shift counts as sharp."""


def reference(levels: list[float]) -> tuple[float, float]:
    """(level to compare with, scale of its changes) from at least LEAST levels, oldest first."""
    lowest = sorted(levels[-RECENT:-NEWEST])[:LOWEST]
    changes = [b - a for a, b in zip(levels, levels[LAG:], strict=False)]
    return mean(lowest), mad(changes)


class DriftArm:
    """Sees accepted rows only, so that a spike of the fast arm is not seen twice."""

    def __init__(self) -> None:
        self.rows: deque[tuple[int, int, float]] = deque(maxlen=ROWS)
        self.levels: deque[float] = deque(maxlen=KEPT)
        self.count = 0
        self.open: Excursion | None = None
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
        level = midmean([v for _, _, v in self.rows])
        if self.open is not None:
            return self._continue(self.open, level)
        events = []
        if len(self.levels) >= LEAST:
            events = self._judge(level, sigma)
        if self.open is None:
            self.levels.append(level)
        return events

    def _judge(self, level: float, sigma: float) -> list[Event]:
        self.reference, scale = reference(list(self.levels))
        self.limit = THRESHOLD * max(scale, sigma / 8)
        if level - self.reference <= self.limit or self.limit <= 0:
            return []
        bound = self.reference + 0.5 * self.limit
        over = [(r, s) for r, s, v in self.rows if v > bound]
        start_row, start = over[0] if over else self.rows[-1][:2]
        row, step, _ = self.rows[-1]
        self.open = event = Excursion(
            detector="drift",
            baseline=self.reference,
            sigma=sigma or scale * MAD_TO_SIGMA,
            start=start,
            start_row=start_row,
            end=step,
            end_row=row,
        )
        steps = [s for _, s, _ in self.rows]
        for (r, s, v), before in zip(list(self.rows)[1:], steps, strict=False):
            if r >= start_row:
                event.add(r, s, v, max(1, s - before))
        event.alarm(row, step)
        event.kind = "drift"
        return [event.event(closed=False)]

    def _continue(self, event: Excursion, level: float) -> list[Event]:
        if level - self.reference < BACK * self.limit:
            self.open = None
            self.levels.append(level)
            event.kind = "spike"
            return [event.event(closed=True)]
        if event.rows < CHECK:
            return []
        rising, huge = event.rising(), event.huge()
        event.kind = "divergence" if huge else "drift" if rising else "level_shift"
        self.restart()
        return [event.event(closed=True, recovered=False)]

    def restart(self) -> list[Event]:
        """Forgets the levels; what is open ends here."""
        events = self.finish() if self.open is not None and self.open.rows < CHECK else []
        self.open = None
        self.rows.clear()
        self.levels.clear()
        self.count = 0
        return events

    def finish(self) -> list[Event]:
        event, self.open = self.open, None
        return [] if event is None else [event.event(closed=True, recovered=False)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": [list(r) for r in self.rows],
            "levels": list(self.levels),
            "count": self.count,
            "open": self.open and self.open.state_dict(),
            "limit": self.limit,
            "reference": self.reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = deque([(r, s, v) for r, s, v in state["rows"]], maxlen=ROWS)
        self.levels = deque(state["levels"], maxlen=KEPT)
        self.count, self.open = state["count"], restore(state["open"])
        self.limit, self.reference = state["limit"], state["reference"]
