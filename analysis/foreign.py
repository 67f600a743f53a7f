"""Curves that were trained elsewhere, in the same frames: a table, or runs in wandb.

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

from ablate.analysis.frames import KEYS, Frames, flatten
from ablate.errors import DataError
from ablate.rundir import ENDED

__all__ = ["load_csv", "load_wandb"]

_NEEDED = ("arm", "seed", "step")
_READERS = {
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".parquet": pd.read_parquet,
    ".jsonl": lambda path: pd.read_json(path, lines=True),
}
_WHAT = "A table of curves needs arm, seed, step and the metric"
_SEED = re.compile(r"[-_. ]?(?:s|seed)[-_=]?(\d+)$")


def load_csv(
    path: str | Path,
    *,
    metric: str = "val/bpb",
    baseline: str | None = None,
    study: str | None = None,
) -> Frames:
    """Reads a table with the columns arm, seed, step and metrics, one row a trial and step.

    A trial's last value of the metric is final. One that is not finite, or is missing at the step
    at which other trials have theirs, counts as diverged.

    Args:
        path: a .csv, .tsv, .jsonl or .parquet file.
        metric: the metric that decides.
        baseline: an arm; None: the first of the file.
        study: a name; None: the file's.

    Raises:
        DataError: naming the column that is missing, or the row that makes no sense.
    """
    path = Path(path)
    rows = _read(path)
    for column in (*_NEEDED, metric):
        if column not in rows:
            there = ", ".join(map(str, rows.columns))
            raise DataError(f"{path} has no column {column!r} (it has {there}). {_hint(rows)}")
    if not len(rows):
        raise DataError(f"{path} has no rows. {_WHAT}.")
    rows = rows.assign(arm=rows["arm"].astype(str))
    for column in ("seed", "step"):
        rows[column] = _whole(rows[column], path, column)
    twice = rows.duplicated(["arm", "seed", "step"])
    if twice.any():
        row = rows[twice].iloc[0]
        raise DataError(
            f"{path}: arm {row['arm']}, seed {row['seed']} has step {row['step']} twice. One row a "
            "trial and step; give repeated trials seeds of their own."
        )
    return _frames(
        rows,
        metric=metric,
        baseline=baseline,
        study=study or path.stem,
        source=str(path),
    )


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
    return _frames(
        pd.concat(parts.values(), ignore_index=True),
        metric=metric,
        baseline=baseline or flagged,
        study=name,
        source=str(path),
        endings=endings,
    )


# ---- both


def _frames(
    rows: pd.DataFrame,
    *,
    metric: str,
    baseline: str | None,
    study: str,
    source: str,
    endings: Mapping[tuple[str, int], str | None] | None = None,
) -> Frames:
    arms = list(dict.fromkeys(rows["arm"]))
    base = baseline or arms[0]
    if base not in arms:
        raise DataError(f"baseline={base}: no such arm in {source}. Its arms: {', '.join(arms)}.")
    if metric not in rows:
        raise DataError(
            f"{source}: no run recorded {metric!r}. Recorded: {', '.join(map(str, rows.columns))}."
        )
    curves = rows.assign(study=study).sort_values(["arm", "seed", "step"], kind="stable")
    curves["id"] = curves["arm"] + "-s" + curves["seed"].astype(str)
    curves = curves[[*KEYS, *(c for c in curves.columns if c not in KEYS)]].reset_index(drop=True)
    curves[metric] = pd.to_numeric(curves[metric], errors="coerce")
    groups = curves.groupby("id", sort=False)
    last = groups.last()  # of each column what was measured last
    last = last.assign(id=last.index, step=groups["step"].max())[list(curves.columns)]
    measured = curves[curves[metric].notna()].groupby("id", sort=False)["step"].max()
    # A table does not tell a NaN from what was not measured. Measured were the steps of the others.
    missing = measured.reindex(last.index).fillna(-1) < min(measured.max(), last["step"].max())
    missing &= measured.reindex(last.index).fillna(-1) < last["step"]
    diverged = missing | ~(last[metric].abs() < float("inf"))
    status = pd.Series(["diverged" if d else "done" for d in diverged], index=last.index)
    for (arm, seed), ending in (endings or {}).items():
        if ending is not None:
            status[f"{arm}-s{seed}"] = ending
    last.loc[status == "diverged", metric] = float("nan")
    trials = last.assign(
        lr=float("nan"),
        reference=[None if a == base else base for a in last["arm"]],
        status=status,
        outcome=status,
        reason=None,
        steps=last["step"],
        attempt=1,
    ).reset_index(drop=True)
    manifest = {
        "study": study,
        "baseline": base,
        "design": "singles",
        "decide": {"metric": metric},
        "arms": [{"name": a, "reference": None if a == base else base} for a in arms],
        "trials": [
            {"id": t["id"], "arm": t["arm"], "seed": t["seed"]} for t in trials.to_dict("records")
        ],
    }
    return Frames(
        trials=trials,
        curves=curves,
        events=pd.DataFrame(columns=[*KEYS, "step", "kind"]),
        manifests={study: manifest},
    )


# ---- tables


def _read(path: Path) -> pd.DataFrame:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise DataError(f"{path} is none of {known}: its name should end like one of these.")
    try:
        return reader(path)
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except Exception as error:  # pyarrow and pandas raise many kinds
        said = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as a table: {said}") from None


def _hint(rows: pd.DataFrame) -> str:
    if any(str(c).endswith(("__MIN", "__MAX")) for c in rows.columns):
        return (
            "It looks like a panel's CSV from wandb's pages, which is a sample of the curves: use "
            "load_wandb('ENTITY/PROJECT') instead."
        )
    return f"{_WHAT}; rename its columns."


def _whole(values: pd.Series, path: Path, column: str) -> pd.Series:
    numbers = pd.to_numeric(values, errors="coerce")
    wrong = ~(numbers == numbers.round()) | numbers.isin([float("inf"), -float("inf")])
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise DataError(f"{path}, row {at}: {column} is {values.iloc[at]!r}, not a whole number.")
    return numbers.astype("int64")


# ---- wandb


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
