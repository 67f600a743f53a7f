"""Curves that were trained elsewhere, in the same frames."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ablate.analysis.frames import KEYS, Frames
from ablate.errors import DataError

__all__ = ["load_csv"]

_NEEDED = ("arm", "seed", "step")


def load_csv(
    path: str | Path,
    *,
    metric: str = "val/bpb",
    baseline: str | None = None,
    study: str | None = None,
) -> Frames:
    """Reads a table with the columns arm, seed, step and metrics; the last row of a trial is final.

    A trial whose last value of `metric` is missing or not finite counts as diverged.

    Args:
        path: a CSV (or .parquet) file.
        metric: the metric that decides.
        baseline: an arm; None: the first of the file.
        study: a name; None: the file's.

    Raises:
        DataError: naming the column that is missing.
    """
    path = Path(path)
    try:
        rows = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from None
    for column in (*_NEEDED, metric):
        if column not in rows:
            raise DataError(
                f"{path} has no column {column!r} (it has {', '.join(map(str, rows.columns))}). "
                f"A table of curves needs arm, seed, step and the metric; rename its columns."
            )
    name = study or path.stem
    arms = list(dict.fromkeys(rows["arm"].astype(str)))
    base = baseline or (arms[0] if arms else "")
    if base not in arms:
        raise DataError(f"baseline={base}: no such arm in {path}. Its arms: {', '.join(arms)}.")
    curves = rows.assign(study=name, arm=rows["arm"].astype(str)).sort_values(
        ["arm", "seed", "step"], kind="stable"
    )
    curves["id"] = curves["arm"] + "-s" + curves["seed"].astype(str)
    curves = curves[[*KEYS, *(c for c in curves.columns if c not in KEYS)]].reset_index(drop=True)
    last = curves.groupby("id", sort=False).tail(1)
    finite = pd.to_numeric(last[metric], errors="coerce").abs() < float("inf")
    trials = last.assign(
        lr=float("nan"),
        reference=[None if a == base else base for a in last["arm"]],
        status=["done" if ok else "diverged" for ok in finite],
        reason=None,
        steps=last["step"],
        attempt=1,
    ).reset_index(drop=True)
    manifest = {
        "study": name,
        "baseline": base,
        "design": "singles",
        "decide": {"metric": metric},
        "arms": [{"name": a, "reference": None if a == base else base} for a in arms],
        "trials": [{"id": i} for i in trials["id"]],
    }
    return Frames(
        trials=trials,
        curves=curves,
        events=pd.DataFrame(columns=[*KEYS, "step", "kind"]),
        manifests={name: manifest},
    )
