"""What `ablate sync` is asked for, what it did with each trial, and the work between the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.rundir import TrialDir
from ablate.track.facts import Facts, record_of, summary_of

__all__ = ["Copied", "Request", "Synced", "Task"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where a study is to be mirrored."""

    offline: bool = False
    project: str | None = None
    """None: as each trial's configuration says."""
    entity: str | None = None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trial id -> more columns of its summary, such as the verdict of its arm."""


@dataclass(kw_only=True)
class Copied:
    """What was done with one trial."""

    trial: str
    arm: str
    id: str
    """wandb's id of the run."""
    status: str
    action: str = "pending"
    """created, continued, updated, unchanged, replaced; or skipped or damaged, with the reason."""
    rows: int = 0
    """Rows that were sent or written now."""
    url: str | None = None
    """Its page, or the folder of an offline run."""
    reason: str | None = None
    superseded: int = 0
    """Rows that an earlier attempt recorded and the counted record holds with other values."""


@dataclass(kw_only=True)
class Synced:
    study: str
    mode: str
    project: str
    entity: str | None
    runs: list[Copied]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(run.action for run in self.runs))

    @property
    def damages(self) -> list[str]:
        """What is wrong with the files of trials, by trial."""
        return [f"{run.trial}: {run.reason}" for run in self.runs if run.action == "damaged"]

    def to_json(self) -> dict[str, Any]:
        runs = [vars(run) for run in self.runs]
        return {**vars(self), "runs": runs, "counts": self.counts}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One trial, to be mirrored as requested."""

    trial: TrialDir
    facts: Facts
    request: Request
    done: Copied

    @property
    def entity(self) -> str | None:
        return self.request.entity or self.facts.track["entity"]

    @property
    def project(self) -> str:
        return self.request.project or self.facts.track["project"]

    @property
    def columns(self) -> Mapping[str, Any]:
        return self.request.columns.get(self.trial.id, {})

    def summary(self) -> dict[str, Any]:
        return summary_of(self.trial, self.done.status, self.columns)

    def record(self) -> str:
        """The digest of all that the server should show in the end."""
        return record_of(self.trial, self.facts, self.summary())
