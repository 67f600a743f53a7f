"""Runs in wandb, on the server or in a folder of offline runs.

wandb itself enters through `ablate.track`, which reads every row and never a sample; here its
records become frames.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ablate.analysis.foreign.frames import frames_of
from ablate.analysis.frames import Frames, flatten
from ablate.errors import DataError
from ablate.rundir import ENDED

__all__ = ["load_wandb"]

_SEED = re.compile(r"[-_. ]?(?:s|seed)[-_=]?(\d+)$")


def load_wandb(
    path: str | Path,
    *,
    metric: str = "val/bpb",
    baseline: str | None = None,
    study: str | None = None,
    arm: str | None = None,
    seed: str | None = None,
    step: str | None = None,
    filters: Mapping[str, Any] | None = None,
) -> Frames:
    """Reads the runs of a wandb project, or of a folder with offline runs: every row, no sample.

    Args:
        path: ENTITY/PROJECT on the server, or a folder (`wandb/`, `offline-run-...`, or one above).
        metric: the metric that decides.
        baseline: an arm; None: the one whose runs say `baseline: true`, else the first.
        study: a name; None: the project's.
        arm: what tells arms apart: a key of the configuration (`model.norm`), or group, job_type
            or name; None: the key `arm`, else the job type, the group, or the name without a seed.
        seed: the key of the seed; None: `seed`, or the only key that ends in it, or the name's.
        step: the column of steps; None: `step`, `trainer/global_step`, `global_step`, or wandb's.
        filters: which runs of a project, in wandb's own language.

    Raises:
        DataError: where there are no runs, or no telling arms and seeds apart.
    """
    # Imported here: wandb enters through track alone, and only when it is asked for.
    from ablate.track import read_offline_runs, read_project

    local = Path(path)
    if local.is_file() and local.suffix != ".wandb":
        raise DataError(
            f"{path} is a file. A panel's CSV from wandb's pages is a sample of the curve; name "
            "ENTITY/PROJECT or a folder of offline runs, or read your own table with load_csv."
        )
    records = list(read_offline_runs(local) if local.exists() else read_project(str(path), filters))
    records = [r for r in records if r.rows]
    if not records:
        raise DataError(f"{path} holds no wandb run with any history.")
    name = study or records[0].project or local.name
    parts: dict[tuple[str, int], pd.DataFrame] = {}
    endings: dict[tuple[str, int], str | None] = {}
    ids: dict[tuple[str, int], str] = {}
    flagged = None
    for record in records:
        config = flatten(record.config)
        key = (_arm_of(record, config, arm), _seed_of(record, config, seed))
        if ids.setdefault(key, record.id) != record.id:
            raise DataError(
                f"{path}: the wandb runs {ids[key]} and {record.id} are both arm {key[0]}, seed "
                f"{key[1]}. Tell them apart with arm= or seed=, or leave one out: filters=."
            )
        rows = _curve_of(record, step)
        if key in parts:  # another piece of this run: what it went on from counts no longer
            earlier = parts[key]
            rows = pd.concat([earlier[earlier["step"] < rows["step"].min()], rows])
        parts[key] = rows.assign(arm=key[0], seed=key[1])
        endings[key] = _ending(record, metric)
        if config.get("baseline") is True:
            flagged = key[0]
    return frames_of(
        pd.concat(parts.values(), ignore_index=True),
        metric=metric,
        baseline=baseline or flagged,
        study=name,
        source=str(path),
        endings=endings,
    )


def _curve_of(record: Any, step: str | None) -> pd.DataFrame:
    """One row a step, nothing lost: each metric may have been logged in a row of its own."""
    rows = pd.DataFrame.from_records(record.rows)
    rows = rows.assign(step=pd.to_numeric(rows[_step_column(rows, step, record.id)]))
    rows = rows[rows["step"].notna()].drop(columns=["arm", "seed", "_step"], errors="ignore")
    return rows.astype({"step": "int64"}).groupby("step", sort=True).last().reset_index()


def _ending(record: Any, metric: str) -> str | None:
    """done, diverged, ... as the run says; None: its final value decides."""
    said = record.summary.get("status")
    if said in ENDED or said in ("preempted", "running", "pending"):
        return str(said)
    values = [row[metric] for row in record.rows if metric in row]
    if values and isinstance(values[-1], float) and not math.isfinite(values[-1]):
        return "diverged"
    if record.state == "finished":
        return None
    return "running" if record.state in ("running", "pending") else "failed"


def _arm_of(record: Any, config: Mapping[str, Any], key: str | None) -> str:
    if key in ("group", "job_type", "name"):
        value = getattr(record, str(key))
    elif key is not None:
        value = config.get(key)
    else:
        value = config.get("arm") or record.job_type or record.group or _SEED.sub("", record.name)
    if value in (None, ""):
        raise DataError(
            f"wandb run {record.id} has no {key or 'arm'!r} to tell its arm by. Name a key of its "
            f"configuration with arm=: {_some(config)}; or group, job_type, name."
        )
    return str(value)


def _seed_of(record: Any, config: Mapping[str, Any], key: str | None) -> int:
    if key is None:
        named = [k for k in config if k.rpartition(".")[2].lower() in ("seed", "random_seed")]
        key = "seed" if "seed" in config else named[0] if len(named) == 1 else None
    value = config.get(key) if key is not None else None
    if value is None and key is None and (found := _SEED.search(record.name)):
        value = found[1]
    try:
        return int(str(value))
    except ValueError:
        raise DataError(
            f"wandb run {record.id}: {key or 'its seed'} is {value!r}, not a whole number. Name "
            f"the key of its configuration that holds the seed with seed=: {_some(config)}."
        ) from None


def _some(config: Mapping[str, Any]) -> str:
    return ", ".join(sorted(config)[:20]) or "it has none"


def _step_column(rows: pd.DataFrame, given: str | None, id: str) -> str:
    for column in [given] if given else ["step", "trainer/global_step", "global_step", "_step"]:
        if column in rows and pd.api.types.is_numeric_dtype(rows[column]):
            return str(column)
    raise DataError(f"wandb run {id} has no column of steps {given or ''}. Name one with step=.")
