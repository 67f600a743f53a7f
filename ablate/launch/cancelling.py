"""Ends trials for good, wherever they are: a mark in the trial's folder, then a signal or
`scancel`.

The mark alone is enough: a job that starts and finds it ends the trial, one that runs sees it at
its next heartbeat. So a cancellation also holds where SLURM does not answer.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection
from dataclasses import dataclass, field

from ablate.errors import StudyError
from ablate.launch.assignments import assignments, feeders
from ablate.launch.observe import Scheduler
from ablate.rundir import ENDED, StudyDir, TrialDir
from ablate.rundir.process import process_started

__all__ = ["Cancelled", "cancel", "mark", "unmark"]

REASON = "cancelled by its user"


@dataclass
class Cancelled:
    """What `cancel` did, by trial."""

    ended: list[str] = field(default_factory=list)
    """Had not been running: cancelled now."""
    asked: list[str] = field(default_factory=list)
    """Run: they save and stop at their next step."""
    over: list[str] = field(default_factory=list)
    """Had ended before: left alone."""
    jobs: list[str] = field(default_factory=list)
    """SLURM jobs that were cancelled, in one call."""


def mark(trial: TrialDir) -> None:
    os.close(os.open(trial.cancel_path, os.O_CREAT | os.O_WRONLY, 0o644))


def unmark(trial: TrialDir) -> None:
    trial.cancel_path.unlink(missing_ok=True)


def cancel(study: StudyDir, ids: Collection[str] | None, scheduler: Scheduler | None) -> Cancelled:
    """Cancels the trials (None: all of the study) that have not ended."""
    whole, done = ids is None, Cancelled()
    targets = [t for t in study.trials() if ids is None or t.id in ids]
    open_ones = []
    for trial in targets:
        (done.over.append(trial.id) if _has_ended(trial) else open_ones.append(trial))
    asked = {t.id for t in open_ones if t.cancel_asked()}
    for trial in open_ones:  # all marks first: no feeder or launcher may start one meanwhile
        mark(trial)
    # What runs and has not been asked before saves and stops by itself; its job is left to it.
    saving = {t.id for t in open_ones if t.id not in asked and _runs(t)}
    done.jobs = _jobs(study, {t.id for t in open_ones} - saving, whole=whole)
    if scheduler is not None and done.jobs:
        scheduler.cancel(done.jobs)
    for trial in open_ones:
        (done.ended if _close(trial) else done.asked).append(trial.id)
    return done


def _has_ended(trial: TrialDir) -> bool:
    try:
        return trial.live_state().status in ENDED
    except StudyError:
        return False


def _runs(trial: TrialDir) -> bool:
    try:
        return trial.live_state().status == "running"
    except StudyError:
        return False


def _jobs(study: StudyDir, cancelled: set[str], *, whole: bool) -> list[str]:
    """Array elements all of whose trials are cancelled or over, and the feeders."""
    found, given = [], assignments(study)
    for id in sorted(cancelled):
        assigned = given.get(id)
        if assigned is None or assigned.job_id is None or assigned.job_id in found:
            continue
        others = [study.trial(other) for other in assigned.together if other not in cancelled]
        if all(_has_ended(other) for other in others):
            found.append(assigned.job_id)
    return found + (feeders(study) if whole else [])


def _close(trial: TrialDir) -> bool:
    """Writes the end of a trial that nobody runs, holding its lease; else asks its process."""
    try:
        attempt = trial.acquire()
    except StudyError:  # held, or it has just ended by itself
        _signal(trial)
        return False
    state = trial.state()
    end = state.replace(status="cancelled", outcome="cancelled", reason=REASON)
    attempt.release(end.replace(ended=state.heartbeat))
    return True


def _signal(trial: TrialDir) -> None:
    """SIGTERM to the recorded process, if it is of this machine and certainly the same; not to one
    that is also that of other trials (a stack), which would all stop.
    """
    attempt = trial.newest_attempt()
    record = attempt.record() if attempt is not None else {}
    here = record.get("host") == socket.gethostname() and not record.get("job_id")
    if attempt is None or not here or record.get("seats") or not attempt.is_alive():
        return
    if process_started(record["pid"]) == record.get("process_started") is not None:
        os.kill(record["pid"], signal.SIGTERM)
