"""What a detector reports: one record an event."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ALERTS", "KINDS", "Event", "latest", "plain", "recorded"]

KINDS = (
    "blip", "spike", "level_shift", "divergence", "drift", "plateau", "nonfinite", "rewind", "gap",
)  # fmt: skip
ALERTS = ("spike", "level_shift", "divergence", "drift", "plateau")
"""Kinds that are worth somebody's attention; a blip is one row that everybody forgets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An excursion of the loss, or a break of its record. Rows count from 0."""

    kind: str
    start: int
    """Step of the first row over 3 sigma that leads into the alarm."""
    start_row: int
    detect: int | None = None
    """Step at which the alarm was given; None for a blip, which gives none."""
    detect_row: int | None = None
    peak: int | None = None
    peak_row: int | None = None
    end: int | None = None
    """Step of the last row over 3 sigma; None while the event is open."""
    end_row: int | None = None
    height: float | None = None
    """Nats from the frozen baseline to the peak."""
    sigma: float | None = None
    """The height in units of the frozen standard deviation."""
    percent: float | None = None
    """The height in per cent of the frozen baseline."""
    baseline: float | None = None
    area: float | None = None
    """Nats x steps above the frozen baseline."""
    recovery: str | None = None
    """recovered, slow (over 100 rows) or unrecovered."""
    recovery_steps: int | None = None
    """From the peak to the end; None where it has not ended."""
    residual: float | None = None
    """Nats by which the level after the event lies above the frozen baseline."""
    cause: str | None = None
    """data (seen by every arm on that batch), arm (by one alone) or None (not compared)."""
    detector: str = "fast"
    """Which detector saw it: fast, drift or record."""
    closed: bool = False
    """False in the alarm that is given while the event still goes on."""
    overwritten: bool = False
    """Its rows were repeated after a rewind: the later ones count."""
    corroboration: dict[str, dict[str, float]] = field(default_factory=dict)
    """Signal -> ratio to its usual value, and lead in steps before the start of the event."""

    @property
    def is_alert(self) -> bool:
        return self.kind in ALERTS

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: not-a-number and infinity become null."""
        made = {name: getattr(self, name) for name in self.__slots__}
        return {k: plain(v) for k, v in made.items()}


def plain(value: Any) -> Any:
    """Plain JSON: numbers that are not finite become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def recorded(rows: Iterable[Mapping[str, Any]]) -> list[Event]:
    """The last word on each spike in rows of events.jsonl; other rows are passed over."""
    names = Event.__slots__
    return latest(Event(**{k: r[k] for k in names if k in r}) for r in rows if "start_row" in r)


def latest(events: Iterable[Event]) -> list[Event]:
    """The last word on each event (an alarm is followed by its full record), by row."""
    last = {(e.detector, e.start_row, e.kind if e.detector == "record" else ""): e for e in events}
    return sorted(last.values(), key=lambda e: (e.start_row, e.detector))
