"""What wandb is told about a trial; all of it follows from the files on disk."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.errors import StudyError
from ablate.rundir import StudyDir, TrialDir
from ablate.rundir.names import CONFIG, EVENTS, METRICS

__all__ = [
    "LONGEST_NAME",
    "RECORD",
    "Facts",
    "facts_of",
    "id_of",
    "record_of",
    "rows_of",
    "run_id",
    "summary_of",
]

LONGEST_TAG = LONGEST_JOB_TYPE = 64
LONGEST_NAME = 128
RECORD = "record"
"""Key of the summary that says which local record was mirrored; written last."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    id: str
    name: str
    group: str
    """The study."""
    arm: str
    tags: list[str]
    config: dict[str, Any]
    """Nested, as it was resolved; beside it, flat, the keys that people group by."""
    track: dict[str, Any] = field(default_factory=dict)
    """The section `track` of the configuration, with its defaults."""

    @property
    def job_type(self) -> str:
        return self.arm[:LONGEST_JOB_TYPE]


def run_id(study: str, trial: str, created: Any = None, afresh: int = 0) -> str:
    """The same for every attempt, on every machine, wherever the folder lies.

    Args:
        study: the name in the manifest.
        trial: the trial's id.
        created: when the study was frozen; another study of that name is another set of runs.
        afresh: how often the trial was started all over (`force=true`): wandb takes no row back,
            so a record that starts again is another run.
    """
    parts = [study, trial]
    parts += [] if created is None else [str(created)]
    parts += [f"afresh-{afresh}"] if afresh else []
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]


def id_of(trial: TrialDir, manifest: Mapping[str, Any]) -> str:
    """`run_id` of a trial on disk."""
    study = str(manifest.get("study") or StudyDir(trial.path.resolve().parent.parent).name)
    afresh = len(list(trial.path.glob("aside-*")))
    return run_id(study, trial.id, manifest.get("created"), afresh)


def facts_of(trial: TrialDir, manifest: Mapping[str, Any] | None = None) -> Facts:
    """Everything about the run but its curves and results."""
    study = StudyDir(trial.path.resolve().parent.parent)
    if manifest is None:
        manifest = study.manifest() if study.exists() else {}
    entry = next((t for t in manifest.get("trials", []) if t["id"] == trial.id), {})
    arm_name = entry.get("arm", trial.id)
    arm = next((a for a in manifest.get("arms", []) if a["name"] == arm_name), {})
    levels = arm.get("levels") or {}
    config = trial.config() if (trial.path / CONFIG).exists() else {}  # planned, not yet written
    if not isinstance(config, dict):
        raise StudyError(f"{trial.path / CONFIG} is damaged: it holds no configuration.")
    name = str(manifest.get("study") or study.name)
    track = {"project": "ablate", "entity": None, "mode": "auto", "tags": []}
    track |= config.get("track") or {}
    tags = [f"{factor}={level}" for factor, level in levels.items()] + list(track["tags"] or [])
    return Facts(
        id=id_of(trial, manifest),
        name=trial.id[:LONGEST_NAME],
        group=name[:LONGEST_NAME],
        arm=arm_name,
        tags=list(dict.fromkeys(str(tag)[:LONGEST_TAG] for tag in tags if str(tag))),
        config={
            **config,
            "arm": arm_name,
            "baseline": arm_name == manifest.get("baseline"),
            "reference": arm.get("reference"),
            "lr": entry.get("lr"),
            **{f"factor.{factor}": level for factor, level in levels.items()},
            "fingerprint": entry.get("fingerprint"),
            "parameters": arm.get("parameters"),
            "flops_per_token": arm.get("flops_per_token"),
        },
        track=track,
    )


def rows_of(trial: TrialDir) -> Iterator[dict[str, Any]]:
    """The rows that count, each step once; where the attempts are gone, from metrics.parquet.

    Raises:
        StudyError: for files that are damaged.
    """
    if trial.attempts() or not trial.metrics_path.exists():
        yield from trial.stitched()
        return
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        for batch in parquet.ParquetFile(trial.metrics_path).iter_batches():
            for row in batch.to_pylist():
                yield {key: value for key, value in row.items() if value is not None}
    except (pyarrow.ArrowException, OSError) as error:
        raise StudyError(f"{trial.metrics_path} is damaged: {error}") from None


def summary_of(trial: TrialDir, status: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Final metrics, how the trial ended, what was spotted on the way, and the verdict."""
    kinds = Counter(str(event.get("kind")) for event in trial.stitched(EVENTS))
    return {
        **(trial.summary() or {}),
        "status": status,
        "attempts": len(trial.attempts()),
        **{f"events/{kind}": number for kind, number in sorted(kinds.items())},
        **columns,
    }


def record_of(trial: TrialDir, facts: Facts, summary: Mapping[str, Any]) -> str:
    """A digest of all that a mirror should show: equal digests, nothing to do."""
    told = hashlib.sha256()
    for attempt, start, end in trial.lineage():
        told.update(f"{attempt.number} {start} {end}\n".encode())
        path = attempt.path / METRICS
        if path.exists():
            told.update(path.read_bytes())
    about = [facts.name, facts.group, facts.arm, facts.tags, facts.config, dict(summary)]
    told.update(json.dumps(about, sort_keys=True, default=str).encode())
    return told.hexdigest()[:16]
