"""Where a study stands, as plain values: what `list`, `status` and `launch` show."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ablate.errors import StudyError
from ablate.rundir import STATUSES, StudyDir

__all__ = ["counts_of", "standing", "study_status", "trials_of"]


def study_status(study: StudyDir) -> dict[str, Any]:
    """What `ablate status --json` prints."""
    manifest = study.manifest()
    trials = trials_of(study, manifest)
    counts = counts_of(trials)
    return {
        "study": study.name,
        "path": str(study.path),
        "question": manifest.get("question") or "",
        "design": manifest.get("design"),
        "baseline": manifest.get("baseline"),
        "created": manifest.get("created"),
        "state": standing(counts),
        "counts": counts,
        "trials": trials,
    }


def trials_of(study: StudyDir, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """One mapping a trial, in the manifest's order."""
    return [_trial(study, entry) for entry in manifest.get("trials", [])]


def counts_of(trials: list[dict[str, Any]]) -> dict[str, int]:
    """Status -> number of trials; every status is a key."""
    counted = Counter(trial["status"] for trial in trials)
    return {status: counted[status] for status in STATUSES}


def standing(counts: dict[str, int]) -> str:
    """The study in one word: running, failed, unfinished, done, or empty."""
    if counts["running"]:
        return "running"
    if counts["pending"] or counts["preempted"]:
        return "unfinished"
    if counts["failed"] or counts["cancelled"]:
        return "failed"
    return "done" if sum(counts.values()) else "empty"


def _trial(study: StudyDir, entry: dict[str, Any]) -> dict[str, Any]:
    trial = study.trial(entry["id"])
    try:
        state = trial.live_state()
    except StudyError as error:  # one damaged trial must not hide the others
        return {
            **_keys(entry),
            "status": "failed",
            "step": 0,
            "steps": 0,
            "attempt": 0,
            "reason": str(error),
        }
    step, loss = state.step, None
    if state.status == "running":
        row = trial.latest_row() or {}
        step, loss = max(step, int(row.get("step", 0))), row.get("train/loss")
    return {
        **_keys(entry),
        "status": state.status,
        "outcome": state.outcome,
        "step": step,
        "steps": state.steps,
        "attempt": state.attempt,
        "reason": state.reason,
        "loss": loss,
        "host": state.host,
        "pid": state.pid,
        "job_id": state.job_id,
        "started": state.started,
        "ended": state.ended,
        "path": str(trial.path),
    }


def _keys(entry: dict[str, Any]) -> dict[str, Any]:
    return {"id": entry["id"], "arm": entry["arm"], "seed": entry["seed"], "lr": entry.get("lr")}
