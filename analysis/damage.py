"""What is wrong with the files of single trials: it is named, and hides no other trial.

A final metric is written twice, in summary.json and as the last row of the record. Where the two
disagree, somebody edited the summary, and the record counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ablate.rundir import FROM_LAST_ROW, before_last_tenth

__all__ = ["add_damage", "check_against_record", "damaged_row"]

_MEAN_OF_LAST = "train/loss"
"""The mean over the last tenth of the steps."""
_SAME = 1e-9


def add_damage(row: dict[str, Any], what: str) -> None:
    """Notes it in the row of a trial, beside what is known."""
    before = row.get("damage")
    if not before or what not in before:
        row["damage"] = f"{before} {what}" if before else what


def damaged_row(row: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A trial that cannot be read counts as failed."""
    return {**row, "status": "failed", "outcome": "code", "reason": what, "damage": what}


def check_against_record(
    rows: Sequence[dict[str, Any]], lengths: Sequence[int], columns: Mapping[str, np.ndarray]
) -> None:
    """Compares the final metrics of trials that are done with their curves, and takes those.

    Args:
        rows: of trials; changed where they disagree.
        lengths: rows of each trial's curve.
        columns: of the curves, all trials one after another; those that are at hand.
    """
    ends = np.cumsum(lengths)
    names = [n for n in columns if n.startswith(FROM_LAST_ROW) or n == _MEAN_OF_LAST]
    for row, end, length in zip(rows, ends.tolist(), lengths, strict=True):
        if row["status"] != "done" or not length:
            continue
        for name in names:
            recorded = _final(name, columns, row, slice(end - length, end))
            if recorded is None or not np.isfinite(recorded):
                continue
            said = row.get(name)
            if isinstance(said, int | float) and not _equal(said, recorded):
                add_damage(
                    row,
                    f"summary.json says {name} {said:g}, the trial's record {recorded:g}: the "
                    "record counts here.",
                )
            if said is None or not _equal(said, recorded):
                row[name] = recorded


def _equal(a: Any, b: float) -> bool:
    return isinstance(a, int | float) and abs(a - b) <= _SAME * abs(b)


def _final(
    name: str, columns: Mapping[str, np.ndarray], row: Mapping[str, Any], rows: slice
) -> float | None:
    values = columns[name][rows]
    if values.dtype.kind not in "iuf":
        return None
    if name != _MEAN_OF_LAST:
        return float(values[-1])
    step = columns.get("step")
    if step is None or step.dtype.kind not in "iuf" or not row["steps"]:
        return None
    last = step[rows] > before_last_tenth(int(row["steps"]))
    return float(np.mean(values[last])) if last.any() else None
