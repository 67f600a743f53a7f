"""Which SLURM job each trial was given to: the newest submission that names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ablate.rundir import StudyDir

__all__ = ["Assignment", "assignments", "feeders"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    job_id: str | None
    """SLURM's name of the task, `12_3`; None while a feeder job holds the trial back."""
    together: tuple[str, ...]
    """The trials of the same task."""
    time: float
    """Of the submission, seconds since the epoch."""
    resources: dict[str, Any]


def assignments(study: StudyDir) -> dict[str, Assignment]:
    """Trial -> the job that it was last given to."""
    found: dict[str, Assignment] = {}
    for one in study.submissions(skip_damaged=True):
        held = Assignment(job_id=None, together=(), time=one.time, resources={})
        found.update(dict.fromkeys(one.held_back, held))
        if one.kind == "feeder":
            continue
        for index, ids in enumerate(one.tasks):
            job, together = one.task_id(index), tuple(ids)
            given = Assignment(
                job_id=job, together=together, time=one.time, resources=one.resources
            )
            found.update(dict.fromkeys(ids, given))
    return found


def feeders(study: StudyDir) -> list[str]:
    """Jobs that submit later what was held back."""
    found = study.submissions(skip_damaged=True)
    return [one.job_id for one in found if one.kind == "feeder" and one.job_id]
