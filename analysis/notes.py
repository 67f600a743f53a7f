"""What stands beside the verdicts: what is missing of an arm, and how to read the rest."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any

import pandas as pd

from ablate.analysis.estimate import Fit
from ablate.rundir import other_machinery

__all__ = ["moved", "notes_of", "with_missing"]

_NAMED = 3


def with_missing(table: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Beside each arm the planned trials that it has no result of, and need not get one."""
    planned = trials.groupby("arm").size()
    notes = dict(zip(table["arm"], table["note"], strict=True))
    for status in ("cancelled", "failed"):  # so that the failed ones come first
        for arm, n in trials.loc[trials["status"] == status, "arm"].value_counts().items():
            if arm in notes:
                said = f"{n} of {planned[arm]} trials {status}"
                notes[arm] = "; ".join(filter(None, (said, notes[arm])))
    return table.assign(note=table["arm"].map(notes))


def notes_of(
    model: Fit,
    lrs: pd.DataFrame,
    judging: pd.DataFrame,
    trials: pd.DataFrame,
    by: str,
) -> list[str]:
    """What people should know of the verdicts.

    Args:
        model: the fit.
        lrs: the learning rate of each arm.
        judging: the one at which each seed is judged.
        trials: of the study.
        by: another metric than the judged one, by which the rates were chosen; or empty.
    """
    notes = []
    if not model.blocked and model.arms:
        notes.append("No two arms share a seed: the comparison is unpaired.")
    notes += [
        f"{arm}: its noise is {times:.1f} times that of the other arms. The pooled noise makes its "
        "own intervals too narrow and the others' too wide: read its seeds one by one."
        for arm, times in model.uneven.items()
    ]
    gone = trials[trials["status"].isin(["failed", "cancelled"])]
    if len(gone):
        notes.append(
            f"{len(gone)} of {len(trials)} trials failed or were cancelled, and are missing here "
            f"(for example {gone['id'].iloc[0]})."
        )
    if (lrs["rates"] > 1).any():
        each = judging.groupby("arm")["seed"].nunique()
        alone = each[each < 2].index.tolist()
        notes.append(
            "Each seed is judged at the learning rate that is best on the other seeds of its arm"
            + (f", by {by}." if by else ".")
            + (f" {', '.join(alone)}: one seed, which chose for itself." if alone else "")
        )
        spread = judging.groupby("arm")["lr"].unique()
        several = {a: sorted(v) for a, v in spread.items() if len(v) > 1}
        notes += [
            f"{arm}: seeds disagree about the best learning rate "
            f"({', '.join(f'{r:g}' for r in rates)})."
            for arm, rates in several.items()
        ]
    return notes


def moved(events: pd.DataFrame) -> list[str]:
    """Which trials went on by other kernels, CPU instructions or devices than they began with."""
    if not len(events) or "kind" not in events:
        return []
    resumed = events.loc[events["kind"] == "resume", "id"].unique()
    began = events[events["kind"].isin(["start", "resume"]) & events["id"].isin(resumed)]
    found = []
    for id, rows in began.groupby("id", sort=False, observed=True):
        for before, after in pairwise(map(_event, rows.to_dict("records"))):
            if said := other_machinery(before, after):
                found.append(f"{id} (from step {int(after['step'])} on: {said})")
    if not found:
        return []
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return [
        "Stopped trials went on by other means than before, so their bits are not those of an "
        f"undisturbed run: {', '.join(found[:_NAMED])}{more}."
    ]


def _event(row: dict[str, Any]) -> dict[str, Any]:
    """As it was recorded; in a frame nested values are JSON."""
    kernels: Any = None
    with contextlib.suppress(TypeError, ValueError):  # it has none
        kernels = json.loads(row["attention"]) if "attention" in row else None
    return {**row, "attention": kernels}
