"""U-curves and learning-rate sensitivity (Wortsman et al., arXiv 2309.14322)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["sensitivity", "u_curves"]


def u_curves(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row an arm and learning rate: `arm, lr, mean, low, high, seeds, diverged`.

    Low and high are the extremes over seeds. A rate at which every seed diverged has no mean.

    Args:
        trials: ended trials: `arm, seed, lr, ok` and the metric.
        metric: the column.
    """
    rated = trials[trials["lr"].notna()]
    rows = []
    for (arm, lr), group in rated.groupby(["arm", "lr"], sort=True):
        values = group.loc[group["ok"], metric].astype(float)
        seeds, diverged = len(values), int((~group["ok"]).sum())
        stats_ = (values.mean(), values.min(), values.max()) if seeds else (np.nan,) * 3
        rows.append((arm, float(lr), *map(float, stats_), seeds, diverged))
    return pd.DataFrame(rows, columns=["arm", "lr", "mean", "low", "high", "seeds", "diverged"])


def sensitivity(
    trials: pd.DataFrame, metric: str, *, cap: float | None = None, lower_is_better: bool = True
) -> pd.DataFrame:
    """One row an arm: the expected excess over its best loss, over the range of learning rates.

    For each seed: the mean, uniform in log lr over the range that all arms tried, of
    min(loss, cap) minus the least of them; a diverged trial stands at the cap.

    Args:
        trials: ended trials: `arm, seed, lr, ok` and the metric.
        metric: the column.
        cap: the loss at initialisation; None: the worst final value of the study.
        lower_is_better: direction of the metric.

    Returns:
        `arm, sensitivity, low, high` (95 % t interval over seeds, from three on), `seeds`,
        `lr_low, lr_high` (the common range), `rates`.
    """
    columns = ["arm", "sensitivity", "low", "high", "seeds", "lr_low", "lr_high", "rates"]
    sign = 1.0 if lower_is_better else -1.0
    rated = trials[trials["lr"].notna()]
    tried = {a: set(g["lr"]) for a, g in rated.groupby("arm", sort=False)}
    common = sorted(set.intersection(*tried.values())) if tried else []
    if len(common) < 2:
        return pd.DataFrame(columns=columns)
    finite = sign * rated.loc[rated["ok"], metric].astype(float)
    worst = sign * cap if cap is not None else float(finite.max()) if len(finite) else np.nan
    x = np.log(common)
    rows = []
    for arm, group in rated[rated["lr"].isin(common)].groupby("arm", sort=False):
        loss = (sign * group[metric].astype(float)).where(group["ok"], worst).clip(upper=worst)
        table = loss.groupby([group["seed"], group["lr"]]).mean().unstack().dropna()
        excess = table.sub(table.min(axis=1), axis=0)[common].to_numpy()
        each = np.trapezoid(excess, x, axis=1) / (x[-1] - x[0])
        low = high = np.nan
        if len(each) >= 3:
            half = stats.t.isf(0.025, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
            low, high = float(each.mean() - half), float(each.mean() + half)
        mean = float(each.mean()) if len(each) else np.nan
        rows.append((arm, mean, low, high, len(each), common[0], common[-1], len(common)))
    return pd.DataFrame(rows, columns=columns)
