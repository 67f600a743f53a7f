"""What was handed to a scheduler: `submissions/<n>.json`, one file a submission, never edited."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.rundir import names
from ablate.rundir.files import fsync_dir, read_json

__all__ = ["Submission", "add_submission", "read_submissions"]


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One array of jobs, or the feeder that submits the next one."""

    number: int = 0
    time: float = 0.0
    """Seconds since the epoch."""
    kind: str = "trials"
    """trials or feeder."""
    cluster: str = "slurm"
    job_id: str = ""
    """The scheduler's number of the array."""
    tasks: list[list[str]] = field(default_factory=list)
    """Index in the array -> ids of the trials that it runs, in order."""
    resources: dict[str, Any] = field(default_factory=dict)
    """What each task asks for: nodes, gpus, cpus, memory, time (minutes), partition, ..."""
    held_back: list[str] = field(default_factory=list)
    """Ids of trials that a feeder submits later."""
    source: str | None = None
    """The frozen code, relative to the study."""
    command: str = ""
    user: str = ""

    def task_id(self, index: int) -> str:
        """The scheduler's name of one task: `<array>_<index>`; an array of one is a plain job."""
        return f"{self.job_id}_{index}" if len(self.tasks) > 1 else self.job_id

    def jobs_of_trials(self) -> dict[str, str]:
        """Trial id -> the scheduler's name of the task that runs it."""
        return {trial: self.task_id(i) for i, task in enumerate(self.tasks) for trial in task}

    def to_dict(self) -> dict[str, Any]:
        return {"schema": names.SCHEMA_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Submission:
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})


def add_submission(folder: Path, submission: Submission) -> Submission:
    """Writes it under the next free number.

    The file appears whole: it is written beside and linked into place, and of two writers who
    want one number the link lets one have it (NFS honours that).
    """
    folder.mkdir(exist_ok=True)
    number = max(_numbers(folder), default=0) + 1
    user = submission.user or _user()
    when = submission.time or time.time()
    temporary = folder / f".{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        while True:
            numbered = dataclasses.replace(submission, number=number, user=user, time=when)
            temporary.write_text(json.dumps(numbered.to_dict()) + "\n", encoding="utf-8")
            try:
                os.link(temporary, folder / f"{number}.json")
            except FileExistsError:
                number += 1
                continue
            fsync_dir(folder)
            return numbered
    finally:
        temporary.unlink(missing_ok=True)


def read_submissions(folder: Path, *, skip_damaged: bool = False) -> list[Submission]:
    """In the order of their numbers.

    Raises:
        StudyError: for one that is damaged, unless it is to be skipped.
    """
    found = []
    for number in _numbers(folder):
        try:
            found.append(Submission.from_dict(read_json(folder / f"{number}.json")))
        except StudyError:
            if not skip_damaged:
                raise
    return found


def _numbers(folder: Path) -> list[int]:
    return sorted(int(p.stem) for p in folder.glob("*.json") if p.stem.isdigit())


def _user() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return str(os.getuid())
