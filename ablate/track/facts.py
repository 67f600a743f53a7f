"""What wandb is told about a trial besides its curves; all of it follows from the files on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ablate.rundir import StudyDir, TrialDir

__all__ = ["Facts", "facts_of", "run_id"]

LONGEST_TAG = 64


@dataclass(frozen=True, kw_only=True)
class Facts:
    id: str
    name: str
    group: str
    """The study."""
    arm: str
    tags: list[str]
    config: dict[str, Any]
    """Nested, as it was resolved, with the keys that people group by beside it."""


def run_id(study: str, trial: str) -> str:
    """The same for every attempt, on every machine."""
    return hashlib.sha256(f"{study}/{trial}".encode()).hexdigest()[:16]


def facts_of(trial: TrialDir) -> Facts:
    study = StudyDir(trial.path.parent.parent)
    manifest = study.manifest() if study.exists() else {}
    entry = next((t for t in manifest.get("trials", []) if t["id"] == trial.id), {})
    arm_name = entry.get("arm", trial.id)
    arm = next((a for a in manifest.get("arms", []) if a["name"] == arm_name), {})
    levels = arm.get("levels") or {}
    config = trial.config()
    tags = [f"{factor}={level}" for factor, level in levels.items()]
    tags += (config.get("track") or {}).get("tags") or []
    return Facts(
        id=run_id(study.name, trial.id),
        name=trial.id,
        group=study.name,
        arm=arm_name,
        tags=[tag[:LONGEST_TAG] for tag in tags],
        config={
            **config,
            "arm": arm_name,
            "baseline": arm_name == manifest.get("baseline"),
            "factor": levels,
            "fingerprint": entry.get("fingerprint"),
            "parameters": arm.get("parameters"),
        },
    )
