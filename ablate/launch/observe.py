"""Where every trial of a study stands: from its own files first, from SLURM second.

No source is trusted alone. A trial that wrote how it ended has ended, whatever SLURM says. One
whose lease is fresh runs. Only where the files are silent (never started, or a lease that expired)
does SLURM's word count; and what SLURM does not know (no accounting, a daemon that is down, a job
that was submitted a second ago) is not lost: then the files stand as they are.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ablate.launch.assignments import Assignment, assignments
from ablate.launch.slurm.states import HELD, NOT_NOW, RUNS, WAITS
from ablate.launch.trial_view import TrialView, seen_in_files
from ablate.rundir import ENDED, StudyDir

if TYPE_CHECKING:
    from ablate.launch.slurm.scheduler import JobInfo

__all__ = ["Scheduler", "scheduler_of", "study_view"]

GONE = {
    "CANCELLED": ("cancelled", "cancelled"),
    "REVOKED": ("cancelled", "cancelled"),
    "DEADLINE": ("cancelled", "cancelled"),
    "TIMEOUT": ("preempted", "time_limit"),
    "PREEMPTED": ("preempted", "preempted"),
    "NODE_FAIL": ("preempted", "node"),
    "BOOT_FAIL": ("preempted", "node"),
    "OUT_OF_MEMORY": ("failed", "oom"),
}
"""SLURM's last word about a job -> status and outcome of a trial that wrote no end of its own."""


class Scheduler(Protocol):
    """See `ablate.launch.slurm.scheduler`; it asks in batches, seldom, and never raises."""

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobInfo]: ...
    def cancel(self, job_ids: Collection[str]) -> None: ...
    def answered(self) -> bool: ...


def study_view(
    study: StudyDir,
    scheduler: Scheduler | None,
    *,
    manifest: Mapping[str, Any] | None = None,
) -> list[TrialView]:
    """One view a trial, in the manifest's order.

    Args:
        study: wherever its folder lies now.
        scheduler: None asks nobody and shows the files alone.
        manifest: where it was read already.
    """
    entries = (study.manifest() if manifest is None else manifest).get("trials", [])
    views = [seen_in_files(study, entry) for entry in entries]
    assigned = assignments(study)
    if not assigned:
        return views
    views = [_assigned(v, assigned.get(v.id)) for v in views]
    if scheduler is None:
        return views
    wanted = {v.job_id for v in views if v.job_id and v.status not in ENDED}
    jobs = scheduler.jobs(wanted) if wanted else {}
    pairs = ((v, jobs.get(v.job_id) if v.job_id else None) for v in views)
    return [v if job is None else judged(v, job, assigned.get(v.id)) for v, job in pairs]


def scheduler_of(study: StudyDir) -> Scheduler | None:
    """The door to SLURM where the study was submitted to it and this machine has its commands."""
    if not assignments(study) or shutil.which("squeue") is None:
        return None
    from ablate.launch.slurm.scheduler import Scheduler as Slurm

    return Slurm()


def _assigned(view: TrialView, assignment: Assignment | None) -> TrialView:
    """With the job that it is (or was) given to."""
    if assignment is None or view.status in ENDED or _is_older(assignment, view):
        return view
    if view.status == "running" and view.job_id:
        return view
    if assignment.job_id is None:
        return view.replace(reason=view.reason or "held back; a feeder job submits it later")
    return view.replace(job_id=assignment.job_id)


def _is_older(assignment: Assignment, view: TrialView) -> bool:
    """Whether the trial has been run elsewhere since it was given to that job."""
    return bool(
        view.attempt
        and view.job_id != assignment.job_id
        and (view.heartbeat or view.started or 0.0) > assignment.time
    )


def judged(view: TrialView, job: JobInfo, assignment: Assignment | None) -> TrialView:
    """What the files and SLURM say together."""
    word = job.state.split()[0].rstrip("+").upper() if job.state else ""
    view = view.replace(slurm_state=word or None)
    if view.status in ENDED:
        return view
    if view.status == "running":
        return view.replace(node=job.node or view.node) if word in RUNS else view
    if word in WAITS:
        return view.replace(reason=_joined(view.reason, _waits(word, job)), eta=None)
    if word in RUNS:
        return _active(view, job)
    if word == "COMPLETED" or not word or (job.exit_code or "").startswith(f"{NOT_NOW}:"):
        return view
    shares = assignment is not None and len(assignment.together) > 1
    if word not in GONE and shares:
        return view  # a packed job fails with any of its trials
    status, outcome = GONE.get(word, ("failed", "code"))
    if word not in GONE and view.attempt:
        status, outcome = "preempted", "node"  # it was killed while it trained: resumable
    said = f"SLURM says {word}" + (f" {job.exit_code}" if job.exit_code else "")
    before = "" if view.attempt else " before it started"
    return view.replace(
        status=status, outcome=outcome, node=job.node or view.node, reason=f"{said}{before}"
    )


def _active(view: TrialView, job: JobInfo) -> TrialView:
    """SLURM runs the job, and the trial's lease does not say so."""
    where = f" on {job.node}" if job.node else ""
    if view.attempt and view.outcome == "node" and (job.start or 0.0) < (view.started or 0.0) + 60:
        age = time.time() - view.heartbeat if view.heartbeat else None
        silent = f"no heartbeat for {age:.0f} s" if age else "no heartbeat"
        reason = f"{silent}; SLURM says {job.state}{where}"
        return view.replace(status="running", outcome=None, node=job.node, reason=reason)
    return view.replace(node=job.node, reason=_joined(view.reason, f"starting{where}"))


def _waits(word: str, job: JobInfo) -> str:
    why = job.reason if job.reason not in (None, "", "None") else None
    if why == "DependencyNeverSatisfied":
        return "never starts: DependencyNeverSatisfied (`ablate cancel`, then launch again)"
    if word in HELD or (why or "").startswith("JobHeld"):
        return f"held in the queue ({why or word})"
    return f"queued ({why})" if why else "queued"


def _joined(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second
