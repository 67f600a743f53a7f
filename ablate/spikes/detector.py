"""The detector: one row at a time while a run trains, or a whole record from the same code."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.spikes.baseline import HALF
from ablate.spikes.drift import DriftArm
from ablate.spikes.events import Event, latest
from ablate.spikes.fast import FastArm
from ablate.spikes.record import Record
from ablate.spikes.robust import LARGEST
from ablate.spikes.screen import calm_rows, is_calm
from ablate.spikes.signals import Signal

__all__ = ["Detector", "detect", "sweep"]

MEMORY = 512
"""Accepted rows that are remembered, to go on from the right level after a rewind."""

RATE_JUMP = 1.5
LONGEST = 4096
"""Rows of a record that are judged together, at most."""
FEW = 64


class Detector:
    """Both arms, the record's breaks and the witnesses.

    `update` returns events as they change: at the alarm, at the end, and once more when the
    offset that they left is known. `latest` keeps the last word on each.
    """

    RATES = ("lr", "learning_rate")
    """Signals that are learning rates, not witnesses."""

    def __init__(self) -> None:
        self.row = -1
        self.fast = FastArm()
        self.drift = DriftArm()
        self.record = Record()
        self.signals: dict[str, Signal] = {}
        self.memory: deque[tuple[int, float]] = deque(maxlen=MEMORY)
        self.nonfinite: Event | None = None
        self.rate: float | None = None

    def update(self, step: int, loss: float, **corroborating: float | None) -> list[Event]:
        """Judges the next row.

        Args:
            step: of training; may jump, repeat or go back.
            loss: in nats; NaN and infinity (2^500 and more counts as such) are one event a block
                and nothing else.
            corroborating: other signals of that row: `grad_norm`, `update_norm` and the like are
                witnesses; a jump of `lr` makes the fast arm attentive for 48 rows.
        """
        self.row += 1
        row, step, loss = self.row, int(step), float(loss)
        what, stride = self.record.read(step)
        events = self._broken(what, row, step) if what else []
        if not abs(loss) < LARGEST:  # true of NaN too
            return events + self._not_finite(row, step, loss)
        if self.nonfinite is not None:
            events.append(_end(self.nonfinite, recovered=True))
            self.nonfinite = None
        found, accepted = self.fast.update(row, step, loss, stride)
        if any(e.is_alert for e in found):
            self.drift.since = 0
        if accepted:
            self.memory.append((step, loss))
            if self.fast.baseline.ready:
                sigma = self.fast.baseline.sigma
                found += self.drift.update(row, step, loss, stride, sigma)
        elif any(e.closed and e.recovery == "unrecovered" for e in found):
            found += self.drift.restart()
        elif self.fast.open is None:
            self.drift.rows.clear()  # the level after an event is taken from rows after it
        if corroborating:
            self._listen(row, step, corroborating, calm=self.fast.open is None)
        return events + [self._corroborated(e) for e in found] if found else events

    @property
    def calm(self) -> bool:
        """Whether no event is going on."""
        return self.fast.open is None and self.drift.open is None and self.nonfinite is None

    def finish(self) -> list[Event]:
        """The record ends here; what is open is reported as not recovered."""
        events = [*self.fast.finish(), *self.drift.finish()]
        if self.nonfinite is not None:
            events.append(_end(self.nonfinite, recovered=False))
            self.nonfinite = None
        return [self._corroborated(e) for e in events]

    def _broken(self, what: str, row: int, step: int) -> list[Event]:
        kind = "gap" if what == "jump" else what
        events = [Event(kind=kind, start=step, start_row=row, detect=step, detect_row=row,
                        end=step, end_row=row, detector="record", closed=True)]  # fmt: skip
        if what == "gap":
            return events
        if what == "rewind":
            while self.memory and self.memory[-1][0] >= step:
                self.memory.pop()
        else:
            self.memory.clear()
        values = [v for _, v in self.memory][-2 * HALF :]
        return [*self.fast.restart(values), *self.drift.restart(), *events]

    def _not_finite(self, row: int, step: int, loss: float) -> list[Event]:
        if self.nonfinite is not None:
            self.nonfinite = replace(self.nonfinite, end=step, end_row=row)
            return []
        self.nonfinite = Event(kind="nonfinite", start=step, start_row=row, detect=step,
                               detect_row=row, peak=step, peak_row=row, end=step, end_row=row,
                               detector="record")  # fmt: skip
        return [self.nonfinite]

    def _listen(
        self, row: int, step: int, values: Mapping[str, float | None], *, calm: bool
    ) -> None:
        for name, value in values.items():
            if value is None:
                continue
            if name in self.RATES:
                self._rate(float(value))
            else:
                signal = self.signals.get(name)
                if signal is None:
                    signal = self.signals[name] = Signal()
                signal.update(row, step, float(value), calm=calm)

    def _rate(self, rate: float) -> None:
        """A learning rate that jumps up is a reason to believe a smaller shift of the loss."""
        if self.rate is not None and self.jumps(rate, self.rate):
            self.fast.prime()
        self.rate = rate

    @staticmethod
    def jumps(rate: Any, before: Any) -> Any:
        """Whether a learning rate (or each of an array) is a jump up from the one before."""
        return (rate > RATE_JUMP * before) & (before > 0)

    def took(
        self,
        steps: NDArray[np.int64],
        losses: NDArray[np.float64],
        columns: Mapping[str, Sequence[float]],
    ) -> None:
        """What `update` does besides the two arms, for calm rows without a break."""
        recent = zip(steps[-MEMORY:].tolist(), losses[-MEMORY:].tolist(), strict=True)
        self.memory.extend(recent)
        self.record.last = int(steps[-1])
        for name, values in columns.items():
            if name in self.RATES:
                self.rate = float(values[len(steps) - 1])
                continue
            signal = self.signals.setdefault(name, Signal())
            for i, (step, value) in enumerate(zip(steps.tolist(), values, strict=False)):
                signal.update(self.row + 1 + i, step, value, calm=True)
        self.row += len(steps)

    def _corroborated(self, event: Event) -> Event:
        if not self.signals or event.detector == "record":
            return event
        end = self.row if event.end_row is None else event.end_row
        for name, signal in self.signals.items():
            found = signal.witness(event.start_row, event.start, end)
            if found is not None and name not in event.corroboration:
                event.corroboration[name] = found
        for known in (self.fast.open, self.fast.settling, self.drift.open):
            same = known is not None and known.start_row == event.start_row
            if known is not None and same and known.detector == event.detector:
                known.signals.update(event.corroboration)
        return event

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON, some 30 kB; a detector that loads it goes on as this one would."""
        return {
            "version": 1,
            "row": self.row,
            "fast": self.fast.state_dict(),
            "drift": self.drift.state_dict(),
            "record": self.record.state_dict(),
            "signals": {k: s.state_dict() for k, s in self.signals.items()},
            "rate": self.rate,
            "memory": [list(m) for m in self.memory],
            "nonfinite": self.nonfinite and self.nonfinite.to_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.row = state["row"]
        self.fast.load_state_dict(state["fast"])
        self.drift.load_state_dict(state["drift"])
        self.record.load_state_dict(state["record"])
        self.signals = {}
        for name, value in state["signals"].items():
            self.signals[name] = Signal()
            self.signals[name].load_state_dict(value)
        self.memory = deque([(s, v) for s, v in state["memory"]], maxlen=MEMORY)
        self.rate = state["rate"]
        old = state["nonfinite"]
        self.nonfinite = None if old is None else Event(**old)


def _end(event: Event, *, recovered: bool) -> Event:
    recovery = "recovered" if recovered else "unrecovered"
    return replace(event, closed=True, recovery=recovery)


def detect(
    steps: Sequence[int] | np.ndarray,
    losses: Sequence[float] | np.ndarray,
    **corroborating: Sequence[float] | np.ndarray,
) -> list[Event]:
    """The events of a whole record, by row: what `Detector.update` finds row by row.

    Args:
        steps: of training, one a row; they may jump, repeat or go back.
        losses: in nats, one a row.
        corroborating: other signals, one value a row each.
    """
    detector = Detector()
    events = list(sweep(detector, steps, losses, **corroborating)) + detector.finish()
    return _marked(latest(events), np.asarray(steps).tolist())


def sweep(
    detector: Detector,
    steps: Sequence[int] | np.ndarray,
    losses: Sequence[float] | np.ndarray,
    **corroborating: Sequence[float] | np.ndarray,
) -> Iterator[Event]:
    """Feeds rows to `detector`, calm stretches of them at once; the same state, the same events."""
    columns = {k: np.asarray(v, dtype=np.float64).tolist() for k, v in corroborating.items()}
    at, x = np.asarray(steps, dtype=np.int64), np.asarray(losses, dtype=np.float64)
    i, length = 0, FEW
    while i < len(x):
        if is_calm(detector):
            part = {k: v[i : i + length] for k, v in columns.items()}
            taken = calm_rows(detector, at[i : i + length], x[i : i + length], part)
            whole = taken == length
            length = min(2 * length, LONGEST) if whole else max(length // 4, FEW)
            i += taken
            if whole:
                continue
        end = min(i + FEW // 8, len(x))
        for step, loss in zip(at[i:end].tolist(), x[i:end].tolist(), strict=True):
            yield from detector.update(step, loss, **{k: v[i] for k, v in columns.items()})
            i += 1


def _marked(events: list[Event], steps: list[int]) -> list[Event]:
    """Marks the events whose steps were written again later: the last write counts."""
    array = np.asarray(steps)
    if array.size < 2 or (np.diff(array) > 0).all():
        return events
    # A row counts if no later row has a step as low.
    later = np.minimum.accumulate(array[::-1])[::-1]
    counts = np.append(array[:-1] < later[1:], True)
    return [e if counts[e.start_row] else replace(e, overwritten=True) for e in events]
