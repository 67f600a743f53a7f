"""Curves of an arm: the mean over its seeds and the range, thinned without losing extremes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

__all__ = ["bands", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def bands(
    curves: pd.DataFrame, metric: str, *, ids: Sequence[str] | None = None, points: int = 300
) -> pd.DataFrame:
    """One row an arm and bucket of steps: `arm, step, tokens, mean, low, high, seeds`.

    A bucket's mean is the mean over seeds of what each seed recorded in it; low and high are the
    extremes of all rows in it, so a spike of one step stays visible however much is thinned.

    Args:
        curves: of `Frames`.
        metric: the column; rows without a value are passed over.
        ids: the trials that count; None: all.
        points: buckets at most.
    """
    columns = ["arm", "step", "tokens", "mean", "low", "high", "seeds"]
    if metric not in curves:
        return pd.DataFrame(columns=columns)
    rows = curves[np.isfinite(curves[metric].astype(float))]
    if ids is not None:
        rows = rows[rows["id"].isin(ids)]
    if not len(rows):
        return pd.DataFrame(columns=columns)
    last = int(rows["step"].max())
    width = max(1, -(-min(last, rows["step"].nunique() * _gap(rows["step"])) // points))
    bucket = (rows["step"].to_numpy() - 1) // width
    tokens = rows["tokens"] if "tokens" in rows else pd.Series(np.nan, index=rows.index)
    small = pd.DataFrame(
        {
            "arm": rows["arm"].astype(str),
            "id": rows["id"].astype(str),
            "bucket": bucket,
            "step": rows["step"],
            "tokens": tokens,
            "value": rows[metric].astype(float),
        }
    )
    # Observed=True and sort=False: a million rows group quickly.
    each = small.groupby(["arm", "bucket", "id"], sort=False).agg(
        step=("step", "max"),
        tokens=("tokens", "max"),
        mean=("value", "mean"),
        low=("value", "min"),
        high=("value", "max"),
    )
    arm = each.groupby(["arm", "bucket"], sort=True).agg(
        step=("step", "max"),
        tokens=("tokens", "max"),
        mean=("mean", "mean"),
        low=("low", "min"),
        high=("high", "max"),
        seeds=("mean", "size"),
    )
    return arm.reset_index()[columns]


def sparkline(values: Sequence[float], *, low: float, high: float, width: int) -> str:
    """`values` as blocks between `low` and `high`, each the mean of its share of the curve."""
    y = np.asarray(values, dtype=float)
    if not len(y):
        return ""
    parts = np.array_split(y, min(width, len(y)))
    span = (high - low) or 1.0
    level = [int(np.clip((p.mean() - low) / span * 8, 0, 7)) for p in parts]
    return "".join(_BLOCKS[i] for i in level)


def _gap(steps: pd.Series) -> int:
    """Steps between rows, as a rule."""
    unique = np.sort(steps.unique())
    return int(np.median(np.diff(unique))) if len(unique) > 1 else 1
