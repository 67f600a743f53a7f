"""Which SLURM job each trial was given to: the newest submission that names it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ablate.errors import StudyError
from ablate.rundir import StudyDir, read_json

__all__ = ["Assignment", "assignments", "feeders", "records"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    job_id: str | None
    """`<array job>_<index>`; None while a feeder job holds the trial back."""
    together: tuple[str, ...]
    """The trials of the same array element."""
    time: float
    """Of the submission, seconds since the epoch."""
    resources: dict[str, Any]


def records(study: StudyDir) -> list[dict[str, Any]]:
    """submissions/<n>.json, oldest first; a damaged one is left out."""
    folder = os.path.join(study.path, "submissions")
    try:
        numbers = sorted(int(n[:-5]) for n in os.listdir(folder) if n[:-5].isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for number in numbers:
        try:
            found.append(read_json(study.path / "submissions" / f"{number}.json"))
        except StudyError:
            continue  # a submission that is being written, or lost its bytes: the files still count
    return found


def assignments(study: StudyDir) -> dict[str, Assignment]:
    """Trial -> the job that it was last given to."""
    found: dict[str, Assignment] = {}
    for record in records(study):
        when, resources = float(record.get("time") or 0.0), record.get("resources") or {}
        held = Assignment(job_id=None, together=(), time=when, resources={})
        found.update(dict.fromkeys(record.get("held_back") or (), held))
        if record.get("kind") == "feeder":
            continue
        for index, ids in enumerate(record.get("tasks") or ()):
            job = f"{record['job_id']}_{index}"
            given = Assignment(job_id=job, together=tuple(ids), time=when, resources=resources)
            found.update(dict.fromkeys(ids, given))
    return found


def feeders(study: StudyDir) -> list[str]:
    """Jobs that will submit what was held back."""
    return [str(r["job_id"]) for r in records(study) if r.get("kind") == "feeder" and r["job_id"]]
