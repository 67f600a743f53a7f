"""Curves of an arm: the mean over its seeds and the range, thinned without losing extremes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

__all__ = ["bands", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = ["arm", "step", "tokens", "mean", "low", "high", "seeds"]


def bands(
    curves: pd.DataFrame, metric: str, *, ids: Collection[str] | None = None, points: int = 300
) -> pd.DataFrame:
    """One row an arm and bucket of steps: `arm, step, tokens, mean, low, high, seeds`.

    A bucket's mean is the mean over seeds of what each seed recorded in it; low and high are the
    extremes of all rows in it, so a spike of one step stays visible however much is thinned.

    Args:
        curves: of `Frames`.
        metric: the column; rows without a finite value are passed over.
        ids: the trials that count; None: all.
        points: buckets at most.
    """
    if metric not in curves or not len(curves):
        return pd.DataFrame(columns=_COLUMNS)
    value = curves[metric].to_numpy(dtype=float)
    keep = np.isfinite(value)
    if ids is not None:
        keep &= curves["id"].isin(ids).to_numpy()
    if not keep.any():
        return pd.DataFrame(columns=_COLUMNS)
    step = curves["step"].to_numpy()[keep].astype(np.int64)
    recorded = np.unique(step)
    # Buckets hold equally many of the recorded steps, whether they lie densely or not.
    bucket = np.searchsorted(recorded, step) // -(-len(recorded) // points)
    trial, _ = pd.factorize(curves["id"][keep])
    arm, names = pd.factorize(curves["arm"][keep])
    tokens = curves["tokens"].to_numpy(dtype=float)[keep] if "tokens" in curves else np.nan
    count = int(bucket.max()) + 1
    rows = pd.DataFrame(
        {"key": trial * count + bucket, "step": step, "tokens": tokens, "value": value[keep]}
    )
    group = rows.groupby("key", sort=False)
    each = group["value"].agg(["mean", "min", "max"]).join(group[["step", "tokens"]].max())
    first = pd.DataFrame({"key": rows["key"], "arm": arm, "bucket": bucket}).drop_duplicates("key")
    each = each.join(first.set_index("key"))
    out = each.groupby(["arm", "bucket"], sort=True).agg(
        step=("step", "max"),
        tokens=("tokens", "max"),
        mean=("mean", "mean"),
        low=("min", "min"),
        high=("max", "max"),
        seeds=("mean", "size"),
    )
    out = out.reset_index()
    out["arm"] = [str(names[i]) for i in out["arm"]]
    return out[_COLUMNS]


def sparkline(values: Sequence[float], *, low: float, high: float, width: int) -> str:
    """`values` as blocks between `low` and `high`, each the mean of its share of the curve."""
    y = np.asarray(values, dtype=float)
    if not len(y):
        return ""
    parts = np.array_split(y, min(width, len(y)))
    span = (high - low) or 1.0
    level = [int(np.clip((p.mean() - low) / span * 8, 0, 7)) for p in parts]
    return "".join(_BLOCKS[i] for i in level)
