"""The trial's own logs: one JSON line a step and one an event; those at hand in a single write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ablate.rundir import Attempt, append_lines
from ablate.rundir.names import EVENTS, METRICS

__all__ = ["Record", "Silence"]


class Record:
    """Append-only; a kill can tear the last line at most, and readers skip a torn line."""

    def __init__(
        self, attempt: Attempt, on_row: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self._metrics, self._events = attempt.open_log(METRICS), attempt.open_log(EVENTS)
        self._on_row = on_row

    def rows(self, rows: Sequence[dict[str, Any]]) -> None:
        append_lines(self._metrics, rows)

    def events(self, events: Sequence[dict[str, Any]]) -> None:
        append_lines(self._events, events)

    def event(self, step: int, kind: str, **fields: Any) -> None:
        self.events([{"step": step, "kind": kind, **fields}])

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        """Rows that are written, to whoever follows the trial."""
        if self._on_row is not None:
            for row in rows:
                self._on_row(row)

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

    def rows(self, rows: Sequence[dict[str, Any]]) -> None: ...

    def events(self, events: Sequence[dict[str, Any]]) -> None: ...

    def show(self, rows: Sequence[dict[str, Any]]) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...
