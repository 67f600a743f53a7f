"""state.json: where a trial stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir.files import read_json

__all__ = ["ENDED", "OUTCOMES", "STATUSES", "State", "is_state", "read_state"]

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
    damage: str | None = None
    """What is wrong with the file, where it could not be read; it is not written."""

    def replace(self, **changes: Any) -> State:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "damage"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> State:
        return cls(**{k: v for k, v in values.items() if k in _WRITTEN})


_WRITTEN = {f.name for f in dataclasses.fields(State)} - {"damage"}


def is_state(values: Mapping[str, Any]) -> bool:
    whole = all(isinstance(values.get(k, 0), int) for k in ("step", "steps", "attempt"))
    return whole and values.get("status", "pending") in STATUSES


def read_state(path: Path, remedy: str = "") -> State:
    """Raises StudyError, which ends in `remedy`, where the file holds no state."""
    values = read_json(path, remedy)
    if not is_state(values):
        raise StudyError(f"{path} is damaged (it says {str(values)[:60]!r}). {remedy}")
    return State.from_dict(values)
