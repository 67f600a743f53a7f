"""Where a study stands, as plain values: what `list`, `status`, `watch` and `launch` show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ablate.launch.budget import limit_of, used_hours
from ablate.launch.observe import Scheduler, study_view
from ablate.launch.slurm.states import IN_QUEUE
from ablate.launch.trial_view import TrialView
from ablate.rundir import STATUSES, StudyDir

__all__ = [
    "STYLES",
    "counts_line",
    "counts_of",
    "damages_of",
    "standing",
    "study_status",
    "trials_of",
]

STYLES = {
    "done": "green",
    "diverged": "yellow",
    "failed": "red",
    "running": "cyan",
    "preempted": "magenta",
    "pending": "dim",
    "cancelled": "dim",
}


def study_status(study: StudyDir, scheduler: Scheduler | None = None) -> dict[str, Any]:
    """What `ablate status --json` prints."""
    manifest = study.manifest()
    views = study_view(study, scheduler, manifest=manifest)
    counts, limit = counts_of([v.status for v in views]), limit_of(study)
    queued = sum(v.slurm_state in IN_QUEUE for v in views)
    used = None if limit is None else round(used_hours(study), 4)
    if limit is not None and used is not None and used >= limit:
        views = [_held(v, used, limit) for v in views]
    return {
        "study": study.name,
        "path": str(study.path),
        "question": manifest.get("question") or "",
        "design": manifest.get("design"),
        "baseline": manifest.get("baseline"),
        "created": manifest.get("created"),
        "state": standing(counts, queued),
        "counts": counts,
        "queued": queued,
        "gpu_hours": {"used": used, "limit": limit},
        "scheduler": None if scheduler is None else "answers" if scheduler.answered() else "silent",
        "trials": [v.to_json() for v in views],
    }


def trials_of(study: StudyDir, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One mapping a trial, in the manifest's order, by the files alone."""
    return [v.to_json() for v in study_view(study, None, manifest=manifest)]


def damages_of(trials: Iterable[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the files of trials, by trial."""
    return [f"{t['id']}: {t['damage']}" for t in trials if t.get("damage")]


def counts_of(statuses: Iterable[str]) -> dict[str, int]:
    """Status -> number of trials; every status is a key."""
    counted = Counter(statuses)
    return {status: counted[status] for status in STATUSES}


def counts_line(counts: Mapping[str, int]) -> str:
    """`12 done, 1 failed, 2 pending`."""
    return ", ".join(f"{n} {status}" for status, n in counts.items() if n) or "no trials"


def standing(counts: Mapping[str, int], queued: int = 0) -> str:
    """The study in one word: running, queued, unfinished, failed, done, or empty."""
    if counts["running"]:
        return "running"
    if counts["pending"] or counts["preempted"]:
        return "queued" if queued else "unfinished"
    if counts["failed"] or counts["cancelled"]:
        return "failed"
    return "done" if sum(counts.values()) else "empty"


def _held(view: TrialView, used: float, limit: float) -> TrialView:
    if view.status not in ("pending", "preempted"):
        return view
    return view.replace(reason=f"held: {used:.3g} of {limit:.3g} GPU-hours are used up")
