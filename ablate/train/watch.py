"""The detector beside the loop: one update a step, on numbers that the host has anyway.

After a step the processor's caches hold the step, and whatever Python does first is several times
as slow as what it does next. So where nothing is done about spikes, rows are watched and written
several at once: after a second at most, and before anything else is recorded; all are watched, then
all are written, so that each finds the caches as the row before left them. What is still in memory
when a process is killed, it would have had to compute again anyway, from its checkpoint.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from ablate.spikes import Event
from ablate.spikes.signals import of_row
from ablate.train.later import settle
from ablate.train.record import Record
from ablate.train.respond import Seen
from ablate.train.run import Run

__all__ = ["Watch"]

MOST, SECONDS = 64, 1.0
"""So many rows are held back, and for so long."""


class Watch:
    """Writes rows, the events that they open or close, and what was done about them.

    Args:
        patient: rows may be held back, where the response allows it.
    """

    def __init__(self, run: Run, record: Record, *, patient: bool = True) -> None:
        self._run, self._record = run, record
        self._patient = patient and run.response.passive
        self._rows: list[dict[str, Any]] = []
        self._since = self._last = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.flush()

    def see(self, row: dict[str, Any]) -> str | None:
        """Takes in the row of one step.

        Returns:
            Why the trial is to be ended here, or None.
        """
        self._rows.append(row)
        now = time.monotonic()
        step, self._last = now - self._last, now
        if self._patient and len(self._rows) < MOST and now + step - self._since < SECONDS:
            return None
        return self.flush()

    def flush(self) -> str | None:
        """What is held back is watched and written; returns as `see` does."""
        rows, self._rows = self._rows, []
        self._since = time.monotonic()
        if not rows:
            return None
        settle(rows)
        why, events = None, []
        for row in rows:
            why = self._judge(row, events) or why
        self._record.rows(rows)
        if events:
            self._record.events(events)
        self._record.show(rows)
        return why

    def event(self, step: int, kind: str, **fields: Any) -> None:
        """Of the training itself, behind the events of the steps before."""
        self.flush()
        self._record.event(step, kind, **fields)

    def finish(self, step: int) -> None:
        """The record ends at `step`: what is still open has not recovered."""
        self.flush()
        for event in self._run.detector.finish():
            self._record.events([_line(step, event)])

    def _judge(self, row: dict[str, Any], events: list[dict[str, Any]]) -> str | None:
        """Adds the events of a row to `events`, and to the row what was done about them."""
        run, step, loss = self._run, row["step"], row["train/loss"]
        found = run.detector.update(step, loss, **of_row(row))
        alarm = any(e.is_alert and e.detect == step and not e.closed for e in found)
        why = run.response.answer(run, step, loss, Seen(alarm=alarm, calm=run.detector.calm))
        row |= run.response.columns()
        events += [_line(step, event) for event in found]
        events += [{"step": step, "kind": "response", **f} for f in run.response.done]
        run.response.done.clear()
        return why


def _line(step: int, event: Event) -> dict[str, Any]:
    """One at the alarm and one more whenever more is known; the last of them counts."""
    return {"step": step, **event.to_dict()}
