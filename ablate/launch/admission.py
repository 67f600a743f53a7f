"""Whether an attempt may run at all: cancelled trials, deaths without progress, equal failures.

An attempt that died without a word is given its class here by the one that follows it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import traceback
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.launch.outcome import reason_of
from ablate.launch.slurm.autopsy import cause_of_death
from ablate.launch.slurm.identity import this_job
from ablate.launch.slurm.ill_nodes import leave_out_ill_nodes
from ablate.rundir import Attempt, State, StudyDir, TrialDir, incidents, names
from ablate.rundir.files import last_row

__all__ = ["CLUSTER", "cluster_here", "conclude", "deaths_without_progress", "note", "refusal"]

log = logging.getLogger("ablate")

CLUSTER = "ABLATE_CLUSTER"
"""Variable of a job that holds the ClusterConfig it was submitted with, as JSON."""

COUNTED = ("node", "time_limit", "oom")
"""Classes of death that use up the budget; a preemption is nobody's fault."""


CANCELLED = {"status": "cancelled", "outcome": "cancelled", "reason": "as ablate cancel asked"}
"""The end of a trial whose user gave it up."""


def cluster_here() -> ClusterConfig | None:
    """What this SLURM job was submitted with; None for one that ablate did not submit."""
    text = os.environ.get(CLUSTER)
    return ClusterConfig(**json.loads(text)) if text and this_job() else None


def refusal(attempt: Attempt) -> dict[str, Any] | None:
    """The end of an attempt that must not run, as fields of its state; None where it may."""
    trial, cluster = attempt.trial, cluster_here()
    if cluster is not None:
        bury(trial, attempt, cluster)
    if trial.cancel_asked():
        return CANCELLED
    if cluster is None:
        return None
    deaths = deaths_without_progress(trial)
    if len(deaths) > cluster.max_retries or (deaths and deaths[-1].outcome == "oom"):
        last = deaths[-1]
        times = f" ({len(deaths)} times without progress)" if len(deaths) > 1 else ""
        return {"status": "failed", "outcome": last.outcome, "reason": f"{last.reason}{times}"}
    return None


def bury(trial: TrialDir, now: Attempt, cluster: ClusterConfig) -> None:
    """Gives every attempt before `now` that ended without a word its class and reason."""
    for attempt in trial.attempts():
        if attempt.number >= now.number or attempt.own_state() is not None:
            continue
        outcome, reason, blame = cause_of_death(attempt)
        log.warning("attempt %s: %s (%s)", attempt.number, reason, outcome)
        conclude(attempt, outcome, reason)
        record = attempt.record()
        if blame and (node := record.get("node")):
            job = str(record.get("job_id"))
            incidents.note_death(trial.study_path, node, job, trial.id, attempt.number)
            leave_out_ill_nodes(StudyDir(trial.study_path), cluster)


def conclude(attempt: Attempt, outcome: str, reason: str) -> State:
    """Writes how an attempt ended on its behalf; its process is dead."""
    newest = last_row(attempt.path / names.METRICS) or {}
    step = newest.get("step") or (attempt.record().get("resumed") or {}).get("step", 0)
    state = attempt.trial.state().replace(
        status="preempted", outcome=outcome, reason=reason, step=int(step), ended=time.time()
    )
    attempt.conclude(state)
    return state


def deaths_without_progress(trial: TrialDir) -> list[State]:
    """The ends, oldest first, of the attempts since the last that went further than it began."""
    ended = [(a, s) for a in trial.attempts() if (s := a.own_state()) is not None]
    reached = trial.newest_checkpoint()
    further, deaths = (reached[1] if reached else 0), []
    for attempt, state in reversed(ended):
        if attempt.has_begun():
            began = int((attempt.record().get("resumed") or {}).get("step", 0))
            if further > began:
                break
            further = began
        if state.outcome in COUNTED:
            deaths.append(state)
    return deaths[::-1]


def note(attempt: Attempt, outcome: str, error: BaseException) -> None:
    """Marks a failure that is nobody's but the code's; the k-th equal one before anything is
    done holds the rest of the study back.
    """
    cluster = cluster_here()
    if cluster is None or outcome not in ("code", "config") or not cluster.canary:
        return
    trial, study = attempt.trial, attempt.trial.study_path
    signature = signature_of(error)
    arms = {t["id"]: t["arm"] for t in StudyDir(study).manifest().get("trials", [])}
    arm = arms.get(trial.id)
    incidents.note_failure(study, signature, trial.id, arm=arm, attempt=attempt.number)
    alike = incidents.failures_like(study, signature)
    # One broken arm fails with all its seeds; that must not stop the others.
    several = len({f["arm"] for f in alike}) >= min(2, len(set(arms.values())))
    done = any(StudyDir(study).trial(id).summary_path.exists() for id in arms)
    if len(alike) >= cluster.canary and several and not done:
        incidents.hold(
            study,
            signature=signature,
            reason=reason_of(error),
            trials=[f["trial"] for f in alike],
            log=str(attempt.log_path.relative_to(study)),
            traceback="".join(traceback.format_exception(error)),
        )


def signature_of(error: BaseException) -> str:
    """Equal for failures of one cause: the exception's class, and where it was raised. What another
    process of the trial told was raised nowhere here, and has only its words.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = [f"{os.path.basename(f.filename)}:{f.name}:{f.lineno}" for f in frames[-3:]]
    text = json.dumps([type(error).__name__, *(last or [str(error)])])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
