"""How a study was last launched: where to, with which budget, and whom to tell when it ends.

Kept beside the manifest, and not in it: it may change from launch to launch, the study may not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.errors import StudyError
from ablate.rundir import StudyDir, read_json, write_json

if TYPE_CHECKING:
    from ablate.plan import Plan

__all__ = ["FILE", "Settings", "remember", "remember_plan", "remembered"]

FILE = "launch.json"


KINDS = {
    "cluster": dict | None,
    "arms": dict | None,
    "command": str | None,
    "folder": str | None,
    "time": int | float | None,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    cluster: dict[str, Any]
    """The `cluster` section of the first trial."""
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Arm -> its own `cluster` section, where it asks for something else."""
    command: str | None
    folder: str | None
    """In which the command was given."""
    time: float

    @property
    def max_gpu_hours(self) -> float | None:
        return self.cluster.get("max_gpu_hours")

    @property
    def notify(self) -> str | None:
        return self.cluster.get("notify")


def remember(
    study: StudyDir,
    cluster: Mapping[str, Any],
    command: str | None,
    arms: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Writes launch.json where it would say something new.

    Args:
        study: on disk.
        cluster: of the first trial.
        command: that asked for the launch.
        arms: the `cluster` section of each arm; those that equal `cluster` are not written.
    """
    old, own = remembered(study), {k: dict(v) for k, v in (arms or {}).items() if v != cluster}
    if old is not None and (old.cluster, old.arms, old.command) == (dict(cluster), own, command):
        return
    record = {"cluster": dict(cluster), "arms": own, "command": command, "folder": os.getcwd()}
    write_json(study.path / FILE, {"schema": 1, **record, "time": time.time()})


def remember_plan(study: StudyDir, plan: Plan, command: str | None) -> None:
    """The same of a plan that is launched."""
    arms = {arm.name: arm.config["cluster"] for arm in plan.arms}
    remember(study, plan.trials[0].config["cluster"], command, arms)


def remembered(study: StudyDir) -> Settings | None:
    """None for a study that was made by `ablate train`, or whose file is lost."""
    path = study.path / FILE
    try:
        record = read_json(path) if path.exists() else None
    except StudyError:
        return None
    if record is None or not all(isinstance(record.get(k), kind) for k, kind in KINDS.items()):
        return None
    return Settings(
        cluster=dict(record.get("cluster") or {}),
        arms=dict(record.get("arms") or {}),
        command=record.get("command"),
        folder=record.get("folder"),
        time=float(record.get("time") or 0.0),
    )
