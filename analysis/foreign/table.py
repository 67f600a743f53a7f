"""Curves in a table: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ablate.analysis.foreign.frames import frames_of
from ablate.analysis.frames import Frames
from ablate.errors import DataError

__all__ = ["load_csv"]

_NEEDED = ("arm", "seed", "step")
_READERS = {
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".parquet": pd.read_parquet,
    ".jsonl": lambda path: pd.read_json(path, lines=True),
}
_WHAT = "A table of curves needs arm, seed, step and the metric"


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
    return frames_of(
        rows,
        metric=metric,
        baseline=baseline,
        study=study or path.stem,
        source=str(path),
    )


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
    return f"{_WHAT}; rename its columns, or name another metric (metric=, or --metric)."


def _whole(values: pd.Series, path: Path, column: str) -> pd.Series:
    numbers = pd.to_numeric(values, errors="coerce")
    wrong = ~(numbers == numbers.round()) | numbers.isin([float("inf"), -float("inf")])
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise DataError(f"{path}, row {at}: {column} is {values.iloc[at]!r}, not a whole number.")
    return numbers.astype("int64")
