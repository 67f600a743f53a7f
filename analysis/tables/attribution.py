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
from ablate.design.ladder import FEWEST_ORDERS

__all__ = ["COLUMNS", "TOTAL", "attribution"]

COLUMNS = ["step", "gain", "low", "high", "error", "noise_error", "order_error", "share", "orders"]
TOTAL = "total"
_PRIOR = 2.0
"""Degrees of freedom that the spread of all steps lends to the spread of one (moderated variances,
Smyth 2004, doi 10.2202/1544-6115.1027): by itself a spread over four orders is often small by
chance, and its interval too narrow."""


def attribution(
    model: Fit,
    orders: Sequence[Sequence[str]],
    steps: Sequence[Sequence[str]],
    *,
    alpha: float = 0.05,
    drawn: bool = False,
) -> pd.DataFrame:
    """One row a step, and the total.

    Args:
        model: arms' effects, seed by seed.
        orders: for each order the arms from the baseline up.
        steps: for each order the name of the change that leads from one arm to the next.
        alpha: level of each interval.
        drawn: whether a single order was drawn too, and not meant.

    Returns:
        `gain` is the mean change of the metric (negative where lower is better and the step
        helps); `noise_error` comes from the trials' noise, `order_error` from having seen only
        some of the orders (0 where all, where there is one and it is meant, and where they differ
        by no more than the noise), `error` from both: not a number with fewer than FEWEST_ORDERS
        of more, and so are the ends of the interval.
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
    spread = np.einsum("isj,jk,isk->s", contrast - mean, model.covariance, contrast - mean)
    error, order, df = _order_error(each, spread * model.sigma**2, noise[:-1], model.df, drawn)
    error, order = np.append(error, noise[-1]), np.append(order, 0.0)
    df = np.append(df, model.df)
    half = stats.t.isf(alpha / 2, df) * error if model.df > 0 else error * np.nan
    return pd.DataFrame(
        {
            "step": [*names, TOTAL],
            "gain": gain,
            "low": gain - half,
            "high": gain + half,
            "error": error,
            "noise_error": noise,
            "order_error": order,
            # Of a change that may be none there are no shares.
            "share": np.nan if not gain[-1] or abs(gain[-1]) <= half[-1] else gain / gain[-1],
            "orders": len(known),
        },
        columns=COLUMNS,
    )


def _order_error(
    each: np.ndarray, spread: np.ndarray, noise: np.ndarray, df: int, drawn: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Error of each step's share, the part of it by having seen only some of the orders, and its
    degrees of freedom (Satterthwaite's).

    Args:
        each: the shares, [order, step].
        spread: the sum of squares over orders that the trials' noise alone leads one to expect.
        noise: error by the trials' noise.
        df: its degrees of freedom.
        drawn: whether a single order was drawn too.
    """
    n, steps = each.shape
    left = max(0.0, 1 - n / factorial(min(steps, 20)))  # orders are drawn from finitely many
    if not left or (n == 1 and not drawn):
        return noise, np.zeros(steps), np.full(steps, float(df))
    if n == 1:
        return (np.full(steps, np.nan),) * 3
    own = left / n * each.var(axis=0, ddof=1)  # of the mean, by orders and the noise within them
    expected = left / n * spread / (n - 1)  # by that noise alone
    freedom = _PRIOR + n - 1
    seen = (_PRIOR * own.mean() + (n - 1) * own) / freedom
    order = np.sqrt(np.maximum(seen - expected, 0.0))
    if n < FEWEST_ORDERS:
        return np.full(steps, np.nan), order, np.full(steps, np.nan)
    shared = np.maximum(noise**2 - expected, 0.0)  # noise that all orders have in common
    with np.errstate(invalid="ignore", divide="ignore"):
        together = (shared + seen) ** 2 / (shared**2 / df + seen**2 / freedom)
    together = np.where(np.isfinite(together), together, df)
    return np.sqrt(shared + seen), order, np.maximum(together, 1.0)
