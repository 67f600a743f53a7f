"""Where every trial of a study stands: from its own files first, from SLURM second.

No source is trusted alone. A trial that wrote how it ended has ended, whatever SLURM says. One
whose lease is fresh runs. Only where the files are silent (never started, or a lease that expired)
does SLURM's word count; and what SLURM does not know (no accounting, a daemon that is down, a job
that was submitted a second ago) is not lost: then the files stand as they are.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ablate.errors import StudyError
from ablate.launch.assignments import Assignment, assignments
from ablate.rundir import ENDED, State, StudyDir, TrialDir

__all__ = [
    "Scheduler",
    "SlurmJob",
    "TrialView",
    "judged",
    "scheduler_of",
    "seen_in_files",
    "study_view",
]

ACTIVE = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "STAGE_OUT", "SUSPENDED", "STOPPED"}
WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
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


NOT_NOW = "75:"
"""Exit code of a job that found nothing to run: held back, or run elsewhere."""


class SlurmJob(Protocol):
    """What is known of one job (or one element of an array)."""

    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...
    @property
    def exit_code(self) -> str | None: ...
    @property
    def start(self) -> float | None: ...


class Scheduler(Protocol):
    """See `ablate.launch.slurm.scheduler`; it asks in batches, seldom, and never raises."""

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, SlurmJob]: ...
    def cancel(self, job_ids: Collection[str]) -> None: ...
    def answered(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialView:
    """A trial as people see it."""

    id: str
    arm: str
    seed: int
    lr: float | None = None
    status: str
    """One of STATUSES; that a trial waits in SLURM's queue is `slurm_state`."""
    outcome: str | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    eta: float | None = None
    """Seconds until its last step, where it runs."""
    node: str | None = None
    attempt: int = 0
    reason: str | None = None
    job_id: str | None = None
    slurm_state: str | None = None
    """SLURM's own word, None where it was not asked or does not know."""
    host: str | None = None
    pid: int | None = None
    heartbeat: float | None = None
    started: float | None = None
    ended: float | None = None
    path: str = ""

    def replace(self, **changes: Any) -> TrialView:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


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


# ---- the files


def seen_in_files(study: StudyDir, entry: Mapping[str, Any]) -> TrialView:
    """One trial by its own files; a damaged one is shown as failed and hides no other."""
    trial = study.trial(entry["id"])
    keys = {"id": entry["id"], "arm": entry["arm"], "seed": entry["seed"], "lr": entry.get("lr")}
    try:
        state = _live_state(trial)
    except StudyError as error:
        return TrialView(**keys, status="failed", outcome="code", reason=str(error))
    view = TrialView(
        **keys,
        status=state.status,
        outcome=state.outcome,
        step=state.step,
        steps=state.steps,
        node=state.host,
        attempt=state.attempt,
        reason=state.reason,
        job_id=state.job_id,
        host=state.host,
        pid=state.pid,
        heartbeat=state.heartbeat,
        started=state.started,
        ended=state.ended,
        path=str(trial.path),
    )
    if state.status == "done":
        return view.replace(loss=_final_loss(trial))
    return view if state.attempt == 0 else _with_progress(view, trial)


def _live_state(trial: TrialDir) -> State:
    """`TrialDir.live_state`, without looking at the attempts of a trial that plainly has ended."""
    state = trial.state()
    attempts = os.path.join(trial.path, "attempts")
    if state.attempt == 0 and state.status == "pending" and not os.path.isdir(attempts):
        return state
    newer = os.path.join(attempts, str(state.attempt + 1))
    if state.status in ENDED and not os.path.exists(newer):
        return state
    return trial.live_state()


def _final_loss(trial: TrialDir) -> float | None:
    try:
        return _number((trial.summary() or {}).get("train/loss"))
    except StudyError:
        return None


def _with_progress(view: TrialView, trial: TrialDir) -> TrialView:
    row = trial.latest_row()
    if row is None:
        return view
    step = max(view.step, int(row.get("step", 0))) if view.status == "running" else view.step
    view = view.replace(step=step, loss=_number(row.get("train/loss")))
    if view.status != "running":
        return view
    attempt = trial.newest_attempt()
    record = attempt.record() if attempt is not None else {}
    return view.replace(eta=_seconds_left(view, row, record), node=record.get("node") or view.node)


def _seconds_left(
    view: TrialView, row: Mapping[str, Any], record: Mapping[str, Any]
) -> float | None:
    left, step = view.steps - view.step, int(row.get("step", 0))
    speed, tokens = _number(row.get("tokens_per_second")), _number(row.get("tokens"))
    if left <= 0 or step <= 0:
        return 0.0 if step > 0 else None
    if speed and tokens:
        return left * tokens / step / speed
    done = step - int((record.get("resumed") or {}).get("step", 0))
    began = record.get("time")
    return left * (time.time() - began) / done if began and done > 0 else None


def _number(value: Any) -> float | None:
    """JSON has no NaN, so a loss that is none is no number here either."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


# ---- SLURM


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


def judged(view: TrialView, job: SlurmJob, assignment: Assignment | None) -> TrialView:
    """What the files and SLURM say together."""
    word = job.state.split()[0].rstrip("+").upper() if job.state else ""
    view = view.replace(slurm_state=word or None)
    if view.status in ENDED:
        return view
    if view.status == "running":
        return view.replace(node=job.node or view.node) if word in ACTIVE else view
    if word in WAITING:
        return view.replace(reason=_joined(view.reason, _waits(word, job)), eta=None)
    if word in ACTIVE:
        return _active(view, job)
    if word == "COMPLETED" or not word or (job.exit_code or "").startswith(NOT_NOW):
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


def _active(view: TrialView, job: SlurmJob) -> TrialView:
    """SLURM runs the job, and the trial's lease does not say so."""
    where = f" on {job.node}" if job.node else ""
    if view.attempt and view.outcome == "node" and (job.start or 0.0) < (view.started or 0.0) + 60:
        age = time.time() - view.heartbeat if view.heartbeat else None
        silent = f"no heartbeat for {age:.0f} s" if age else "no heartbeat"
        reason = f"{silent}; SLURM says {job.state}{where}"
        return view.replace(status="running", outcome=None, node=job.node, reason=reason)
    return view.replace(node=job.node, reason=_joined(view.reason, f"starting{where}"))


def _waits(word: str, job: SlurmJob) -> str:
    why = job.reason if job.reason not in (None, "", "None") else None
    if why == "DependencyNeverSatisfied":
        return "never starts: DependencyNeverSatisfied (`ablate cancel`, then launch again)"
    if word == "REQUEUE_HOLD" or (why or "").startswith("JobHeld"):
        return f"held in the queue ({why or word})"
    return f"queued ({why})" if why else "queued"


def _joined(first: str | None, second: str) -> str:
    return f"{first}; {second}" if first else second
