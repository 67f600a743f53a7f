"""What each step of a ladder contributed to the whole gain: Shapley values over its orders.

In one order a step's share is its rung minus the one below; over orders these shares are averaged.
In every order they telescope, so the values sum exactly to the difference of the ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial

import numpy as np
import pandas as pd
from scipy import stats

from ablate.analysis.estimate import Fit

__all__ = ["COLUMNS", "TOTAL", "attribution"]

COLUMNS = ["step", "gain", "low", "high", "error", "noise_error", "order_error", "share", "orders"]
TOTAL = "total"


def attribution(
    model: Fit,
    orders: Sequence[Sequence[str]],
    steps: Sequence[Sequence[str]],
    *,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """One row a step, and the total.

    Args:
        model: arms' effects, seed by seed.
        orders: for each order the arms from the baseline up.
        steps: for each order the name of the change that leads from one arm to the next.
        alpha: level of each interval.

    Returns:
        `gain` is the mean change of the metric (negative where lower is better and the step
        helps); `noise_error` comes from the trials' noise, `order_error` from having seen only
        some of the orders (0 where all, or where there is one and it is meant), `error` from both.
    """
    index = {a: i for i, a in enumerate(model.arms)}
    known = [(o, s) for o, s in zip(orders, steps, strict=True) if all(a in index for a in o)]
    if not known:
        return pd.DataFrame(columns=COLUMNS)
    names = list(dict.fromkeys(name for _, s in known for name in s))
    # Marginal changes as contrasts of the arms' effects: [order, step, arm].
    contrast = np.zeros((len(known), len(names), len(model.arms)))
    for i, (arms, changes) in enumerate(known):
        for below, above, name in zip(arms, arms[1:], changes, strict=False):
            contrast[i, names.index(name), index[above]] += 1
            contrast[i, names.index(name), index[below]] -= 1
    each = contrast @ model.effects
    mean = contrast.mean(axis=0)
    rows_of = np.vstack([mean, mean.sum(axis=0)])
    gain = rows_of @ model.effects
    noise = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows_of, model.covariance, rows_of), 0))
    noise *= model.sigma
    order = np.append(_order_error(each, len(names)), 0.0)
    error = np.hypot(noise, order)
    half = stats.t.isf(alpha / 2, model.df) * error if model.df > 0 else error * np.nan
    return pd.DataFrame(
        {
            "step": [*names, TOTAL],
            "gain": gain,
            "low": gain - half,
            "high": gain + half,
            "error": error,
            "noise_error": noise,
            "order_error": order,
            "share": gain / gain[-1] if gain[-1] else np.nan,
            "orders": len(known),
        },
        columns=COLUMNS,
    )


def _order_error(each: np.ndarray, steps: int) -> np.ndarray:
    """Of a mean over orders drawn from all of them (with the correction for a finite number)."""
    n = len(each)
    if n < 2:
        return np.zeros(each.shape[1])
    left = max(0.0, 1 - n / factorial(min(steps, 20)))
    return each.std(axis=0, ddof=1) / np.sqrt(n) * np.sqrt(left)
