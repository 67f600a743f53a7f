"""An effect in steps, FLOPs and time of the reference: read off the reference's own loss curve.

Inside the curve it is a reading. Beyond its end (the arm is better than the reference ever was) it
is an extrapolation of the second half, linear in the logarithm of the step, and it is called so;
further than half the budget beyond the end nothing is said.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

__all__ = ["COLUMNS", "FEWEST", "equivalents"]

COLUMNS = [
    "arm", "reference", "difference", "steps", "steps_low", "steps_high", "gained", "reading",
    "flops_ratio", "time_ratio",
]  # fmt: skip
_FURTHEST = 1.5
"""Times the budget."""
FEWEST = 4
"""Points of a curve that can be read off."""


def equivalents(
    effects: pd.DataFrame, curve: pd.DataFrame, *, lower_is_better: bool = True
) -> pd.DataFrame:
    """One row an arm: the steps after which its reference has the arm's final value.

    Args:
        effects: `arm, reference, difference, low, high`, and for the ratios `flops` and `seconds`
            of a whole trial.
        curve: `arm, step, mean` of the metric over the training, as `bands` gives it.
        lower_is_better: direction of the metric.

    Returns:
        `steps` (and its interval, from the simultaneous one of the difference; not a number where
        it lies out of reach); `gained` = steps / budget - 1; `reading` within, extrapolated,
        "beyond" or "none"; `flops_ratio` and `time_ratio`: what the reference would pay for the
        arm's loss over what the arm paid, so that above 1 the arm is cheaper.
    """
    sign = 1.0 if lower_is_better else -1.0
    curves = {a: g.sort_values("step") for a, g in curve.groupby("arm", sort=False)}
    cost = effects.set_index("arm")
    rows = []
    for row in effects.to_dict("records"):
        reference = row["reference"]
        if not isinstance(reference, str):
            continue
        given = {k: row[k] for k in COLUMNS[:3]} | {"reading": "none"}
        out = dict.fromkeys(COLUMNS, np.nan) | given
        rows.append(out)
        base = curves.get(reference)
        if base is None or len(base) < FEWEST or not np.isfinite(row["difference"]):
            continue
        read = _Reader(base["step"].to_numpy(float), sign * base["mean"].to_numpy(float))
        out["steps"], out["reading"] = read(sign * row["difference"])
        ends = [read(sign * row[k])[0] for k in ("low", "high")]
        out["steps_low"], out["steps_high"] = min(ends), max(ends)
        if np.isnan(ends).any():
            out["steps_low"], out["steps_high"] = (
                (np.nan, np.nan) if np.isnan(ends).all() else (np.nanmin(ends), np.nan)
            )
        out["gained"] = out["steps"] / read.budget - 1
        for name, column in (("flops_ratio", "flops"), ("time_ratio", "seconds")):
            if column in cost and reference in cost.index:
                paid = float(cost[column][row["arm"]])
                out[name] = out["steps"] / read.budget * float(cost[column][reference]) / paid
    return pd.DataFrame(rows, columns=COLUMNS)


class _Reader:
    """The step at which a falling curve has a value, relative to its end."""

    def __init__(self, step: np.ndarray, value: np.ndarray) -> None:
        keep = np.isfinite(value)
        self.step, value = step[keep], value[keep]
        self.budget = float(self.step[-1])
        # The first tenth falls from the initial loss, and no arm ends there.
        self.falling = np.asarray(isotonic_regression(value, increasing=False).x)
        half = self.step >= self.budget / 2
        x, y = np.log(self.step[half]), value[half]
        self.slope = float(np.polyfit(x, y, 1)[0]) if half.sum() >= 2 else 0.0

    def __call__(self, difference: float) -> tuple[float, str]:
        target = self.falling[-1] + difference
        if not np.isfinite(target):
            return np.nan, "none"
        if difference >= 0:
            if target > self.falling[0]:
                return np.nan, "beyond"
            # Of a flat stretch the last step: the value is still held there.
            values, steps = self.falling[::-1], self.step[::-1]
            first = np.r_[True, np.diff(values) > 0]
            return float(np.interp(target, values[first], steps[first])), "within"
        if self.slope >= 0:
            return np.nan, "beyond"
        step = self.budget * float(np.exp(min(difference / self.slope, 50.0)))
        return (step, "extrapolated") if step <= _FURTHEST * self.budget else (np.nan, "beyond")
