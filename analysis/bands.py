"""Curves of an arm: the mean over its seeds and the range, thinned without losing extremes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

__all__ = ["bands", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = ["arm", "step", "tokens", "mean", "low", "high", "seeds", "difference"]


def bands(
    curves: pd.DataFrame,
    metric: str,
    *,
    ids: Collection[str] | None = None,
    baseline: str | None = None,
    points: int = 300,
) -> pd.DataFrame:
    """One row an arm and bucket: `arm, step, tokens, mean, low, high, seeds, difference`.

    A bucket's mean is the mean over seeds of what each seed recorded in it; low and high are the
    extremes of all rows in it, so a spike of one step stays visible however much is thinned.

    Args:
        curves: of `Frames`.
        metric: the column; rows without a finite value are passed over.
        ids: the trials that count; None: all.
        baseline: the arm from which `difference` is taken, over the seeds that both have; NaN
            without it.
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
    value = value[keep]
    tokens = curves["tokens"].to_numpy(dtype=float)[keep] if "tokens" in curves else None
    trial = _codes(curves["id"])[0][keep]
    arm, names = _codes(curves["arm"])
    arm = arm[keep]
    seed = curves["seed"].to_numpy()[keep] if "seed" in curves else np.zeros(len(arm), dtype=int)
    bucket = _buckets(step, points)
    key = trial * (int(bucket.max()) + 1) + bucket
    # Rows of a trial lie together and in order, so groups are runs; else they are sorted.
    start = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    if len(start) != len(np.unique(key[start])):
        order = np.argsort(key, kind="stable")
        columns = (step, value, arm, seed, bucket, key)
        step, value, arm, seed, bucket, key = (v[order] for v in columns)
        tokens = tokens[order] if tokens is not None else None
        start = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    each = pd.DataFrame(
        {
            "arm": arm[start],
            "seed": seed[start],
            "bucket": bucket[start],
            "step": np.maximum.reduceat(step, start),
            "tokens": np.nan if tokens is None else np.fmax.reduceat(tokens, start),
            "mean": np.add.reduceat(value, start) / np.diff(start, append=len(value)),
            "low": np.minimum.reduceat(value, start),
            "high": np.maximum.reduceat(value, start),
        }
    )
    base = each[each["arm"] == (names.index(baseline) if baseline in names else -1)]
    base = base.set_index(["bucket", "seed"])["mean"].groupby(level=[0, 1]).mean().rename("base")
    each = each.join(base, on=["bucket", "seed"])
    each["difference"] = each["mean"] - each["base"]
    out = each.groupby(["arm", "bucket"], sort=True, as_index=False).agg(
        step=("step", "max"),
        tokens=("tokens", "max"),
        mean=("mean", "mean"),
        low=("low", "min"),
        high=("high", "max"),
        seeds=("mean", "size"),
        difference=("difference", "mean"),
    )
    return out.assign(arm=[names[i] for i in out["arm"]])[_COLUMNS]


def _codes(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """A number for each name, and the names."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype("category")
    return column.cat.codes.to_numpy().astype(np.int64), [str(c) for c in column.cat.categories]


def _buckets(step: np.ndarray, points: int) -> np.ndarray:
    """Equally many of the recorded steps for each, whether they lie densely or not."""
    recorded = np.unique(step) if len(step) < 10_000 else np.flatnonzero(np.bincount(step))
    width = -(-len(recorded) // points)
    number = np.zeros(int(recorded[-1]) + 1, dtype=np.int64)
    number[recorded] = np.arange(len(recorded)) // width
    return number[step]


def sparkline(values: Sequence[float], *, low: float, high: float, width: int) -> str:
    """`values` as blocks between `low` and `high`, each the mean of its share of the curve."""
    y = np.asarray(values, dtype=float)
    if not len(y):
        return ""
    parts = np.array_split(y, min(width, len(y)))
    span = (high - low) or 1.0
    level = [int(np.clip((p.mean() - low) / span * 8, 0, 7)) for p in parts]
    return "".join(_BLOCKS[i] for i in level)
