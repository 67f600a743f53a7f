"""The detector beside the loop: one update a step, on numbers that the host has anyway."""

from __future__ import annotations

from typing import Any

from ablate.spikes.signals import of_row
from ablate.train.record import Record
from ablate.train.respond import Seen
from ablate.train.run import Run

__all__ = ["finish", "watch"]


def watch(run: Run, record: Record, row: dict[str, Any]) -> str | None:
    """Writes the row, the events that it opens or closes, and what was done about them.

    Returns:
        Why the trial is to be ended here, or None.
    """
    step, loss = row["step"], row["train/loss"]
    events = run.detector.update(step, loss, **of_row(row))
    alarm = any(e.is_alert and e.detect == step and not e.closed for e in events)
    why = run.response.answer(run, step, loss, Seen(alarm=alarm, calm=run.detector.calm))
    record.row({**row, **run.response.columns()})
    for event in events:
        record.spike(step, event)
    for fields in run.response.done:
        record.event(step, "response", **fields)
    run.response.done.clear()
    return why


def finish(run: Run, record: Record, step: int) -> None:
    """The record ends at `step`: what is still open has not recovered."""
    for event in run.detector.finish():
        record.spike(step, event)
