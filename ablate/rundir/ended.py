"""The small files of a trial that has ended, each read once.

A report reads those of thousands of trials, nearly all of them sound. What is out of the ordinary
in any way is left to `TrialDir`, which knows what to say of it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ablate.rundir import names
from ablate.rundir.attempt_record import wrong_values
from ablate.rundir.state import ENDED, State, is_state
from ablate.rundir.summary import SEAL, digest

if TYPE_CHECKING:
    from ablate.rundir.trial import TrialDir

__all__ = ["Ended", "read_ended"]


class Ended(NamedTuple):
    state: State
    summary: dict[str, Any]
    """Empty where there is none, and the trial is not done."""
    config: str
    """The text of config.yaml."""
    events: list[dict[str, Any]]


def read_ended(trial: TrialDir) -> Ended | None:
    """None where the trial has not ended, or anything is missing, damaged or unusual."""
    folder = str(trial.path)
    try:
        values = _read_object(f"{folder}/{names.STATE}")
        if not is_state(values) or values.get("status") not in ENDED:
            return None
        state, record = State.from_dict(values), {}
        numbers = sorted(int(n) for n in os.listdir(f"{folder}/{names.ATTEMPTS}") if n.isdigit())
        if not numbers or numbers[-1] != state.attempt:
            return None
        for number in numbers:
            record = _read_object(f"{folder}/{names.ATTEMPTS}/{number}/{names.ATTEMPT}")
            if wrong_values(record):
                return None
        config = _read(f"{folder}/{names.CONFIG}").decode()
        events = [json.loads(line) for line in _read(f"{folder}/{names.EVENTS}").splitlines()]
        if not all(isinstance(event, dict) for event in events):
            return None
        summary = f"{folder}/{names.SUMMARY}"
        if state.status != "done" and not os.path.exists(summary):
            return Ended(state, {}, config, events)
        data = _read(summary)
        if state.status == "done" and record.get(SEAL) not in (None, digest(data)):
            return None
        return Ended(state, _object(data), config, events)
    except (OSError, ValueError, RecursionError):
        return None


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # nobody waits for the other end of a pipe
    try:
        pieces = []
        while piece := os.read(fd, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _read_object(path: str) -> dict[str, Any]:
    return _object(_read(path))


def _object(data: bytes) -> dict[str, Any]:
    """Raises ValueError for anything else."""
    value = json.loads(data.decode())
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
