"""The fast arm: spikes and sharp shifts, one row at a time.

Three things open an event: a row over 6 sigma; a burst, which is a CUSUM with k = 2 and h = 8; and
a shift, a CUSUM with k = 1 and h = 20 against the median of the rows 17 to 32 back, which a new
level reaches late. A fourth is for runs that log their learning rate: within 48 rows of a
jump of it, a shift of the loss needs only h = 6 with k = 1/2.
While it is open the baseline is frozen, so that a spike cannot hide the next one. The alarm is
given on the second row over 3 sigma within three, at once where the row is over 14 sigma, or
where rows are so many steps apart that a second one would come too late.
"""

from __future__ import annotations

from typing import Any

from ablate.spikes.baseline import HALF, Baseline
from ablate.spikes.events import Event
from ablate.spikes.excursion import AFTER, CHECK, Excursion, restore, tail

__all__ = ["FastArm"]

OPEN, SURE, LEAD = 6.0, 14.0, 3.0
UNIT = 1024
"""CUSUMs are kept in whole 1/1024 sigma: exact, whatever the order of the additions."""
SHIFT_K, SHIFT_H = UNIT, 20 * UNIT
BURST_K, BURST_H = 2 * UNIT, 8 * UNIT
PRIMED_K, PRIMED_H, PRIMED_ROWS = UNIT // 2, 6 * UNIT, 48
SPARSE = 5
"""Steps between two rows from which one row is enough to alarm."""
CALM_ROWS, MEDIAN_ROWS = 6, 9


class FastArm:
    """`update` judges a row; `open` is the event that is going on, or None."""

    def __init__(self) -> None:
        self.baseline = Baseline()
        self.open: Excursion | None = None
        self.settling: Excursion | None = None
        """An event that has ended and whose residual offset is still being measured."""
        self.shift = 0
        self.burst = 0
        self.primed: dict[str, float] | None = None
        """Level, CUSUM and rows left since the learning rate jumped."""
        self.primed_rise: tuple[int, int] | None = None
        self.rise: tuple[int, int] | None = None
        """Row and step at which the CUSUM of the shift left 0."""
        self.lead: list[tuple[int, int]] = []
        """Rows and steps of the last rows over 3 sigma."""

    def update(self, row: int, step: int, value: float, stride: int) -> tuple[list[Event], bool]:
        """(events, whether the row went into the baseline)."""
        if self.open is not None:
            return self._continue(self.open, row, step, value, stride), False
        base = self.baseline
        if not base.ready:
            base.accept(value)
            return [], True
        level, sigma = base.expected()
        z = (value - level) / sigma if sigma > 0 else 0.0
        before = self.shift
        if sigma > 0:
            self.shift = cusum(before, (value - base.lagged) / sigma, 4.0, SHIFT_K)
            self.burst = cusum(self.burst, z, OPEN, BURST_K)
        if before == 0 and self.shift > 0:
            self.rise = (row, step)
        shifted = self.shift > SHIFT_H
        sure = shifted or self.burst > BURST_H
        if self.primed is not None:
            primed = self._primed(row, step, value)
            sure = primed or sure
            if primed and not shifted:
                self.rise, shifted = self.primed_rise, True
        if z > OPEN or sure:
            return self._begin(row, step, value, stride, z, sure, shifted), False
        if z > LEAD:
            self.lead = [*self.lead[-3:], (row, step)]
        events = self._settle(value)
        base.accept(value)
        return events, True

    def _begin(
        self,
        row: int,
        step: int,
        value: float,
        stride: int,
        z: float,
        sure: bool,
        shifted: bool,
    ) -> list[Event]:
        events = self._settled()
        near = [(r, s) for r, s in self.lead if r >= row - 3]
        start = near[0] if near else (row, step)
        if shifted and self.rise is not None:
            start = self.rise
        level, sigma = self.baseline.expected()
        self.open = event = Excursion(
            detector="fast",
            baseline=self.baseline.lagged if shifted else level,
            sigma=sigma,
            start_row=start[0],
            start=start[1],
            over=len([r for r, _ in near if r >= row - 2]),
        )
        event.end, event.end_row = step, row
        event.add(row, step, value, stride)
        self._clear()
        if z > SURE or sure or event.over >= 2 or stride >= SPARSE:
            event.alarm(row, step)
            events.append(event.event(closed=False))
        return events

    def prime(self) -> None:
        """The learning rate has jumped: a smaller shift of the loss is believed for a while."""
        if self.primed is None and self.open is None and self.baseline.ready:
            level = self.baseline.lagged
            self.primed = {"level": level, "cusum": 0, "rows": PRIMED_ROWS}

    def _primed(self, row: int, step: int, value: float) -> bool:
        p = self.primed
        if p is None or self.baseline.sigma <= 0:
            return False
        z = (value - p["level"]) / self.baseline.sigma
        before, p["cusum"] = p["cusum"], cusum(int(p["cusum"]), z, 4.0, PRIMED_K)
        if before == 0:
            self.primed_rise = (row, step)
        p["rows"] -= 1
        if p["rows"] <= 0:
            self.primed = None
        return p["cusum"] > PRIMED_H

    def _clear(self) -> None:
        self.shift = self.burst = 0
        self.rise, self.lead, self.primed = None, [], None

    def _continue(
        self, event: Excursion, row: int, step: int, value: float, stride: int
    ) -> list[Event]:
        z = event.add(row, step, value, stride)
        events = []
        if event.detect is None and (z > SURE or (event.over >= 2 and z > LEAD)):
            near = row - event.peak_row <= 2 or event.rows <= 3 or z > SURE
            if near:
                event.alarm(row, step)
                events.append(event.event(closed=False))
        recent = sorted(event.last[-MEDIAN_ROWS:])
        level = event.baseline + 2 * event.sigma
        back = event.rows > MEDIAN_ROWS and recent[MEDIAN_ROWS // 2] < level
        if event.calm >= CALM_ROWS or back:
            if event.detect is not None or event.over:
                events.append(event.event(closed=True))
                self.settling = event
            self.open = None
        elif event.rows % CHECK == 0:
            events += self._judge(event)
        return events

    def _judge(self, event: Excursion) -> list[Event]:
        """A level shift is accepted as the new baseline; a divergence stays open while it rises."""
        rising = event.rising()
        if rising or event.huge():
            event.kind = "divergence"
        if rising:
            return [event.event(closed=False)]
        made = event.event(closed=True, recovered=False, kind=event.kind or "level_shift")
        self.open = None
        self.baseline.restart(tail(event.last, 2 * HALF))
        return [made]

    def _settle(self, value: float) -> list[Event]:
        if self.settling is None:
            return []
        self.settling.after.append(value)
        return self._settled() if len(self.settling.after) >= AFTER else []

    def _settled(self) -> list[Event]:
        event, self.settling = self.settling, None
        if event is None or len(event.after) < 8:
            return []
        return [event.event(closed=True)]

    def restart(self, values: list[float]) -> list[Event]:
        """A break of the record: closes what is open, and begins anew from these rows."""
        events = self.finish()
        self.baseline.restart(values)
        self._clear()
        return events

    def finish(self) -> list[Event]:
        """The record ends here: an event that is still open has not recovered."""
        events = self._settled()
        event, self.open = self.open, None
        if event is not None:
            blip = event.detect is None
            events.append(event.event(closed=True, recovered=blip))
        return events

    def state_dict(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline.state_dict(),
            "open": self.open and self.open.state_dict(),
            "settling": self.settling and self.settling.state_dict(),
            "shift": self.shift,
            "burst": self.burst,
            "primed": self.primed and dict(self.primed),
            "rise": self.rise,
            "primed_rise": self.primed_rise,
            "lead": self.lead,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baseline.load_state_dict(state["baseline"])
        self.open, self.settling = restore(state["open"]), restore(state["settling"])
        self.shift, self.burst = state["shift"], state["burst"]
        self.primed = state["primed"] and dict(state["primed"])
        self.rise, self.primed_rise = place(state["rise"]), place(state["primed_rise"])
        self.lead = [(r, s) for r, s in state["lead"]]


def place(pair: list[int] | None) -> tuple[int, int] | None:
    return None if pair is None else (pair[0], pair[1])


def cusum(before: int, z: float, high: float, k: int) -> int:
    """One step of a one-sided CUSUM of z, clipped to [-3, high], in units of 1/1024 sigma."""
    clipped = -3.0 if z < -3.0 else high if z > high else z
    after = before + int(clipped * UNIT) - k
    return after if after > 0 else 0
