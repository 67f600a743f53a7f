"""attempt.json: who runs an attempt, and where it resumed.

Where the file is damaged, the attempt's own logs tell what the record of the trial needs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir import names
from ablate.rundir.files import has_content, open_file, read_json, read_jsonl

__all__ = ["read_record", "told_by_logs", "wrong_values"]

KINDS: dict[str, type | tuple[type, ...]] = {
    "host": str,
    "machine": str,
    "pid": int,
    "process_started": str,
    "job_id": str,
    "node": str,
    "restart": int,
    "time": (int, float),
    "end": (int, float),
    "resumed": dict,
    "seats": list,
    "stacked": int,
    "peak_memory": int,
    "inference": dict,
    "summary": str,
}
"""Of the values that are read; each may be null or not there."""
TOLD = ("stacked", "seat", "seats")
"""What the attempt's first event tells besides."""


def read_record(folder: Path) -> dict[str, Any]:
    """As it was written; empty where the attempt has not come so far.

    Raises:
        StudyError: where it is damaged, or gone though the attempt has begun.
    """
    try:
        return _read(folder)
    except StudyError as error:
        mends = f"{names.retry_of(folder.parents[3])} writes it anew from the attempt's own logs."
        raise StudyError(f"{str(error).strip()} {mends}") from None


def _read(folder: Path) -> dict[str, Any]:
    path = folder / names.ATTEMPT
    if not os.path.exists(path):
        if any(has_content(folder / name) for name in (names.METRICS, names.EVENTS)):
            raise StudyError(f"{path} is missing.")
        return {}
    record = read_json(path, remedy="")
    if wrong := wrong_values(record):
        said = ", ".join(f"{k}={str(record[k])[:40]!r}" for k in wrong)
        raise StudyError(f"{path} is damaged (it says {said}).")
    return record


def wrong_values(record: Mapping[str, Any]) -> list[str]:
    """The keys under which it holds what no attempt writes."""
    wrong = [k for k, kind in KINDS.items() if k in record and not _is_a(record[k], kind)]
    resumed = record.get("resumed")
    if isinstance(resumed, dict) and not _is_place(resumed):
        wrong.append("resumed")
    return wrong


def told_by_logs(folder: Path, earlier: Mapping[int, Path]) -> dict[str, Any]:
    """What an attempt's events (without those its rows) and its log tell of it: `resumed`, `time`,
    and its seat in a stack.

    Args:
        folder: of the attempt.
        earlier: folders of the attempts before it, by number.
    """
    known = {} if (began := _began(folder / names.LOG)) is None else {"time": began}
    for event in _rows(folder / names.EVENTS):
        told = {key: event[key] for key in TOLD if key in event}
        if event.get("kind") == "start":
            return {**known, **told, "resumed": None}
        place = {"attempt": event.get("resumed"), "step": _before(event.get("step"))}
        if event.get("kind") == "resume" and _is_place(place):
            return {**known, **told, "resumed": place}
    row = next((r for r in _rows(folder / names.METRICS) if _is_a(r.get("step"), int)), {})
    step = _before(row.get("step")) or 0
    if step <= 0:
        return {**known, "resumed": None}
    reached = [n for n, other in earlier.items() if _reached(other) >= step]
    return {**known, "resumed": {"attempt": max(reached, default=0), "step": step}}


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    """None of what is no file."""
    with contextlib.suppress(StudyError):
        yield from read_jsonl(log)


def _before(step: Any) -> int | None:
    """The step that was done when the one after it began."""
    return step - 1 if isinstance(step, int) else None


def _reached(folder: Path) -> int:
    steps = [r.get("step") for r in _rows(folder / names.METRICS)]
    return max((s for s in steps if isinstance(s, int)), default=0)


def _is_place(resumed: Mapping[str, Any]) -> bool:
    return all(
        isinstance(resumed.get(k), int) and not isinstance(resumed[k], bool)
        for k in ("attempt", "step")
    )


def _is_a(value: Any, kind: type | tuple[type, ...]) -> bool:
    return value is None or (isinstance(value, kind) and not isinstance(value, bool))


def _began(log: Path) -> float | None:
    """Seconds since the epoch, from the first line of the attempt's log."""
    with contextlib.suppress(OSError, ValueError, StudyError), open_file(log) as file:
        return time.mktime(time.strptime(file.readline(64)[:19].decode(), "%Y-%m-%d %H:%M:%S"))
    return None
