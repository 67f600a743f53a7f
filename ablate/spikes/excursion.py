"""An event while it is open: peak, area and end against a baseline that is frozen at its start."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from ablate.spikes.events import Event
from ablate.spikes.robust import median

__all__ = ["AFTER", "CHECK", "HUGE", "SLOW", "Excursion"]

AFTER = 64
"""Rows after the end from which the residual offset is taken."""
CHECK = 400
"""Rows after which an event that is still open becomes a level shift or a divergence."""
SLOW = 100
HUGE = 30.0
"""Sigmas above which an event of 400 rows is a divergence, rising or not."""
BLOCK = 32


@dataclass(kw_only=True)
class Excursion:
    """The running measurements of one event."""

    detector: str
    baseline: float
    sigma: float
    start: int
    start_row: int
    detect: int | None = None
    detect_row: int | None = None
    peak: int = 0
    peak_row: int = 0
    height: float = float("-inf")
    end: int = 0
    end_row: int = 0
    area: float = 0.0
    rows: int = 0
    over: int = 0
    """Rows over 3 sigma."""
    calm: int = 0
    """Rows under 2 sigma in a row."""
    kind: str | None = None
    last: list[float] = field(default_factory=list)
    """The newest 2 x BLOCK values."""
    levels: list[float] = field(default_factory=list)
    """Medians of consecutive blocks."""
    after: list[float] = field(default_factory=list)
    signals: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, row: int, step: int, value: float, stride: int) -> float:
        """Takes in one row; its height in sigma over the frozen baseline."""
        height = value - self.baseline
        z = height / self.sigma if self.sigma > 0 else 0.0
        self.rows += 1
        if height > self.height:
            self.height, self.peak, self.peak_row = height, step, row
        if height > 0:
            self.area += height * stride
        if z > 3:
            self.over += 1
            self.end, self.end_row = step, row
        self.calm = self.calm + 1 if z < 2 else 0
        self.last.append(value)
        if len(self.last) > 2 * BLOCK:
            del self.last[0]
        if self.rows % BLOCK == 0:
            self.levels.append(median(self.last[-BLOCK:]))
        return z

    def alarm(self, row: int, step: int) -> None:
        self.detect, self.detect_row = step, row

    def rising(self) -> bool:
        """Whether the newest 128 rows lie above the 128 before them by more than 3 sigma."""
        if len(self.levels) < 8:
            return False
        return median(self.levels[-4:]) > median(self.levels[-8:-4]) + 3 * self.sigma

    def huge(self) -> bool:
        return bool(self.levels) and self.levels[-1] > self.baseline + HUGE * self.sigma

    def event(self, *, closed: bool, recovered: bool = True, kind: str | None = None) -> Event:
        """The record of the event as it stands."""
        kind = kind or self.kind or ("blip" if self.detect is None else "spike")
        ended = closed and recovered
        recovery = None
        if closed:
            slow = self.end_row - self.start_row > SLOW
            recovery = "unrecovered" if not recovered else "slow" if slow else "recovered"
        residual = None
        if closed and recovered and len(self.after) >= 8:
            residual = median(self.after) - self.baseline
        elif closed and not recovered:
            residual = median(self.last) - self.baseline
        level = self.baseline
        return Event(
            kind=kind,
            start=self.start,
            start_row=self.start_row,
            detect=self.detect,
            detect_row=self.detect_row,
            peak=self.peak,
            peak_row=self.peak_row,
            end=self.end if closed else None,
            end_row=self.end_row if closed else None,
            height=self.height,
            sigma=self.height / self.sigma if self.sigma > 0 else None,
            percent=100 * self.height / abs(level) if level else None,
            baseline=level,
            area=self.area,
            recovery=recovery,
            recovery_steps=self.end - self.peak if ended else None,
            residual=residual,
            detector=self.detector,
            closed=closed,
            corroboration={k: dict(v) for k, v in self.signals.items()},
        )

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)


def restore(state: dict[str, Any] | None) -> Excursion | None:
    return None if state is None else Excursion(**state)


def tail(values: list[float] | deque[float], n: int) -> list[float]:
    """The newest n, oldest first."""
    return list(values)[-n:]
