"""The trial's own logs: one JSON line a step and one an event, each in a single write."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ablate.rundir import Attempt, append_line
from ablate.rundir.names import EVENTS, METRICS
from ablate.spikes import Event

__all__ = ["Record", "Silence"]


class Record:
    """Append-only; a kill can tear the last line at most, and readers skip a torn line."""

    def __init__(
        self, attempt: Attempt, on_row: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._metrics, self._events = attempt.open_log(METRICS), attempt.open_log(EVENTS)
        self._on_row = on_row

    def row(self, row: dict[str, Any]) -> None:
        append_line(self._metrics, row)
        if self._on_row is not None:
            self._on_row(row)

    def event(self, step: int, kind: str, **fields: Any) -> None:
        append_line(self._events, {"step": step, "kind": kind, **fields})

    def spike(self, step: int, event: Event) -> None:
        """One line at the alarm and one more whenever more is known; the last of them counts."""
        self.event(step, **event.to_dict())

    def sync(self) -> None:
        """Called before a checkpoint counts, so that no row is missing after a power cut."""
        os.fsync(self._metrics)
        os.fsync(self._events)

    def close(self) -> None:
        os.close(self._metrics)
        os.close(self._events)


class Silence(Record):
    """What a process writes that does not lead its trial: nothing."""

    def __init__(self) -> None: ...

    def row(self, row: dict[str, Any]) -> None: ...

    def event(self, step: int, kind: str, **fields: Any) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...
