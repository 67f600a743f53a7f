"""Curves of an arm: the mean over its seeds and the range, thinned without losing extremes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

__all__ = ["Thinner", "bands", "by_arm", "sparkline"]

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
    return Thinner(curves, ids=ids, baseline=baseline, points=points)(metric)


def by_arm(curve: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """Columns of `bands`, one set of arrays an arm: for hundreds of arms quicker than frames."""
    if not len(curve):
        return {}
    arm = curve["arm"].to_numpy(dtype=object)
    start = np.flatnonzero(np.concatenate([[True], arm[1:] != arm[:-1]]))
    columns = {c: curve[c].to_numpy() for c in curve.columns if c != "arm"}
    ends = [*start[1:].tolist(), len(arm)]
    return {
        str(arm[a]): {name: values[a:b] for name, values in columns.items()}
        for a, b in zip(start.tolist(), ends, strict=True)
    }


class _Runs(NamedTuple):
    """Where each trial's buckets begin."""

    order: np.ndarray | None
    """How the values are sorted first."""
    start: np.ndarray
    row: np.ndarray
    """Of the curves, for each start."""
    bucket: np.ndarray
    step: np.ndarray
    """The last of the bucket."""
    tokens: np.ndarray | None


class Thinner:
    """`bands` of several metrics of the same curves: what they have in common is made once."""

    def __init__(
        self,
        curves: pd.DataFrame,
        *,
        ids: Collection[str] | None = None,
        baseline: str | None = None,
        points: int = 300,
    ) -> None:
        self.curves, self.baseline, self.points = curves, baseline, points
        if not len(curves):
            return
        self.step = curves["step"].to_numpy().astype(np.int64)
        self.trial, names = _codes(curves["id"])
        self.arm, self.names = _codes(curves["arm"])
        self.counts = None
        if ids is not None:
            wanted = np.array([n in set(ids) for n in names] or [False])
            self.counts = wanted[self.trial]
        self._every: _Runs | None = None

    def __call__(self, metric: str) -> pd.DataFrame:
        if not len(self.curves) or metric not in self.curves:
            return pd.DataFrame(columns=_COLUMNS)
        value = self.curves[metric].to_numpy(dtype=float)
        keep = np.isfinite(value)
        if self.counts is not None:
            keep &= self.counts
        if not keep.any():
            return pd.DataFrame(columns=_COLUMNS)
        if not keep.all():
            rows = np.flatnonzero(keep)
            return self._collect(value[rows], self._runs(rows))
        if self._every is None:
            self._every = self._runs(np.arange(len(value)))
        return self._collect(value, self._every)

    def _runs(self, rows: np.ndarray) -> _Runs:
        """Rows of a trial lie together and in order, so buckets are runs; else they are sorted."""
        every = len(rows) == len(self.step)
        step, trial = (self.step, self.trial) if every else (self.step[rows], self.trial[rows])
        bucket = _buckets(step, self.points)
        order, start = None, _begins(trial, bucket)
        key = trial[start] * (int(bucket.max()) + 1) + bucket[start]
        if len(key) != len(np.unique(key)):
            order = np.argsort(trial * (int(bucket.max()) + 1) + bucket, kind="stable")
            step, trial, bucket, rows = step[order], trial[order], bucket[order], rows[order]
            start = _begins(trial, bucket)
        tokens = None
        if "tokens" in self.curves:
            tokens = np.fmax.reduceat(self.curves["tokens"].to_numpy(dtype=float)[rows], start)
        return _Runs(order, start, rows[start], bucket[start], np.maximum.reduceat(step, start),
                     tokens)  # fmt: skip

    def _collect(self, value: np.ndarray, runs: _Runs) -> pd.DataFrame:
        """The trials' buckets, then the arms'."""
        start = runs.start
        value = value if runs.order is None else value[runs.order]
        each = pd.DataFrame(
            {
                "arm": self.arm[runs.row],
                "seed": self.curves["seed"].to_numpy()[runs.row] if "seed" in self.curves else 0,
                "bucket": runs.bucket,
                "step": runs.step,
                "tokens": np.nan if runs.tokens is None else runs.tokens,
                "mean": np.add.reduceat(value, start) / np.diff(start, append=len(value)),
                "low": np.minimum.reduceat(value, start),
                "high": np.maximum.reduceat(value, start),
            }
        )
        names, baseline = self.names, self.baseline
        base = each[each["arm"] == (names.index(baseline) if baseline in names else -1)]
        base = (
            base.set_index(["bucket", "seed"])["mean"].groupby(level=[0, 1]).mean().rename("base")
        )
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


def _begins(trial: np.ndarray, bucket: np.ndarray) -> np.ndarray:
    changed = (bucket[1:] != bucket[:-1]) | (trial[1:] != trial[:-1])
    return np.flatnonzero(np.concatenate([[True], changed]))


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
