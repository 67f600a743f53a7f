"""state.json: where a trial stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ENDED", "OUTCOMES", "STATUSES", "State"]

STATUSES = ("pending", "running", "preempted", "done", "diverged", "failed", "cancelled")
ENDED = ("done", "diverged", "failed", "cancelled")
"""Statuses that `launch` leaves alone; pending and preempted trials are run, expired running
ones too.
"""
OUTCOMES = (
    "done",
    "diverged",
    "code",
    "config",
    "oom",
    "preempted",
    "node",
    "time_limit",
    "cancelled",
)


@dataclass(frozen=True, kw_only=True)
class State:
    status: str = "pending"
    outcome: str | None = None
    """The class of the end, one of OUTCOMES."""
    reason: str | None = None
    """One line for people."""
    step: int = 0
    steps: int = 0
    attempt: int = 0
    job_id: str | None = None
    host: str | None = None
    pid: int | None = None
    heartbeat: float | None = None
    """Seconds since the epoch."""
    started: float | None = None
    ended: float | None = None

    def replace(self, **changes: Any) -> State:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> State:
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})
