"""Studies on disk to tidy frames: one row a trial, one row a step, one row an event.

The schema is documented in docs/analysis.md. Reading imports neither torch nor hydra.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from ablate.errors import StudyError
from ablate.rundir import ENDED, StudyDir, TrialDir
from ablate.rundir.names import EVENTS

__all__ = ["KEYS", "Frames", "flatten", "load"]

KEYS = ["study", "id", "arm", "seed"]
"""The columns that every frame starts with; (study, id) names a trial."""

_TRIAL_COLUMNS = [
    *KEYS,
    "lr",
    "reference",
    "status",
    "outcome",
    "reason",
    "step",
    "steps",
    "attempt",
    "fingerprint",
    "parameters",
    "flops_per_token",
]


@dataclass(frozen=True, kw_only=True)
class Frames:
    """What was recorded, tidy.

    `trials` has one row a trial, `curves` one row a trial and step, `events` one row an event.
    `configs` holds each trial's flat configuration by (study, id), `manifests` each study's
    manifest by name.
    """

    trials: pd.DataFrame
    curves: pd.DataFrame
    events: pd.DataFrame
    configs: Mapping[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    manifests: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def study(self, name: str) -> Frames:
        """Only what belongs to one study."""
        pick = lambda frame: frame[frame["study"] == name].reset_index(drop=True)  # noqa: E731
        return Frames(
            trials=pick(self.trials),
            curves=pick(self.curves),
            events=pick(self.events),
            configs={k: v for k, v in self.configs.items() if k[0] == name},
            manifests={name: self.manifests[name]} if name in self.manifests else {},
        )


def load(
    path: str | Path | Sequence[str | Path],
    *,
    curves: bool = True,
    columns: Iterable[str] | None = None,
) -> Frames:
    """Reads one or several studies.

    Args:
        path: a study's folder, or several.
        curves: whether to read the curves and events at all.
        columns: the metrics of the curves that are read (`step` always is); None: all that were
            recorded.

    Raises:
        StudyError: where a folder is not a study or a file is damaged.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    wanted = None if columns is None else ["step", *(c for c in columns if c != "step")]
    trials: list[dict[str, Any]] = []
    curve_parts: list[pd.DataFrame] = []
    event_rows: list[dict[str, Any]] = []
    configs: dict[tuple[str, str], dict[str, Any]] = {}
    manifests: dict[str, dict[str, Any]] = {}
    for study in map(StudyDir, map(Path, paths)):
        name = study.name
        if name in manifests:
            raise StudyError(
                f"Two of the studies are called {name}: rename one of the folders, or report one."
            )
        manifests[name] = manifest = study.manifest()
        arms = {a["name"]: a for a in manifest.get("arms", [])}
        for entry in manifest.get("trials", []):
            trial = study.trial(entry["id"])
            configs[name, trial.id] = _config(trial)
            row = _trial_row(name, trial, entry, arms.get(entry["arm"], {}))
            trials.append(row)
            if curves:
                curve_parts.append(_curve(trial, row["status"], wanted))
                keys = {k: row[k] for k in KEYS}
                event_rows += [keys | event for event in _events(trial)]
    return Frames(
        trials=_frame(trials, _TRIAL_COLUMNS),
        curves=_join(curve_parts, trials) if curves else _join([], []),
        events=_frame(event_rows, [*KEYS, "step", "kind"]),
        configs=configs,
        manifests=manifests,
    )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections to dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + str(key)] = value
    return flat


def _config(trial: TrialDir) -> dict[str, Any]:
    try:
        return flatten(trial.config() or {})
    except StudyError:
        if trial.path.exists():
            raise
        return {}  # planned, and not yet written


def _trial_row(
    study: str, trial: TrialDir, entry: Mapping[str, Any], arm: Mapping[str, Any]
) -> dict[str, Any]:
    state = trial.live_state()
    row: dict[str, Any] = {
        "study": study,
        "id": trial.id,
        "arm": entry["arm"],
        "seed": entry.get("seed", 0),
        "lr": entry.get("lr"),
        "reference": arm.get("reference"),
        "status": state.status,
        "outcome": state.outcome,
        "reason": state.reason,
        "step": state.step,
        "steps": state.steps,
        "attempt": state.attempt,
        "fingerprint": entry.get("fingerprint"),
        "parameters": arm.get("parameters"),
        "flops_per_token": arm.get("flops_per_token"),
    }
    row |= {f"level/{factor}": label for factor, label in (arm.get("levels") or {}).items()}
    # The state's own word counts: a summary left by an earlier attempt says nothing of an
    # unfinished trial.
    summary = (trial.summary() or {}) if state.status in ENDED else {}
    row |= {k: v for k, v in flatten(summary).items() if row.get(k) is None}
    return row


def _curve(trial: TrialDir, status: str, wanted: list[str] | None) -> pd.DataFrame:
    if status in ENDED and trial.metrics_path.exists():
        file = pq.ParquetFile(trial.metrics_path)
        columns = [c for c in file.schema_arrow.names if wanted is None or c in wanted]
        frame = file.read(columns=columns).to_pandas()
    else:
        frame = pd.DataFrame.from_records(list(trial.stitched()))
        columns = [c for c in frame.columns if wanted is None or c in wanted]
        frame = frame[columns]
    return frame.drop(columns=[c for c in KEYS if c in columns])


def _events(trial: TrialDir) -> list[dict[str, Any]]:
    rows = []
    for event in trial.stitched(EVENTS):
        simple = {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in event.items()}
        rows.append({k: v for k, v in simple.items() if k not in KEYS})
    return rows


def _join(parts: list[pd.DataFrame], trials: list[dict[str, Any]]) -> pd.DataFrame:
    """One frame; the trials' names are categories, so that ten million rows stay small."""
    kept = [(p, t) for p, t in zip(parts, trials, strict=True) if len(p)]
    if not kept:
        return pd.DataFrame(columns=[*KEYS, "step"])
    lengths = [len(p) for p, _ in kept]
    front: dict[str, Any] = {}
    for key in ("study", "id", "arm"):
        names = sorted({t[key] for _, t in kept})
        number = {name: i for i, name in enumerate(names)}
        codes = np.repeat([number[t[key]] for _, t in kept], lengths)
        front[key] = pd.Categorical.from_codes(codes, categories=names)
    front["seed"] = np.repeat(np.array([t["seed"] for _, t in kept], dtype=np.int64), lengths)
    columns = list(dict.fromkeys(c for p, _ in kept for c in p.columns))
    for column in columns:  # one by one: never two copies of everything
        front[column] = np.concatenate(
            [p[column].to_numpy() if column in p else np.full(len(p), np.nan) for p, _ in kept]
        )
    return pd.DataFrame(front, copy=False)


def _frame(rows: list[dict[str, Any]], first: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(rows)
    rest = [c for c in frame.columns if c not in first]
    frame = frame.reindex(columns=[*first, *rest])
    if "lr" in frame:
        frame["lr"] = frame["lr"].astype(float)
    return frame
