"""Data or arm: the residuals that all arms share are the data's, what one shows alone is its own.

Arms of one seed see the same batch at the same step. What the loss of one step lies above its trend
is compared with the mean of the other arms at that step.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.ndimage import uniform_filter1d

from ablate.analysis.tables.stability import curve_slices

__all__ = ["COLUMNS", "residuals"]

COLUMNS = ["arm", "residual_sd", "own_sd", "shared", "correlation", "worst_step", "worst", "seeds"]
_WINDOW = 31


def residuals(
    curves: pd.DataFrame, trials: pd.DataFrame, metric: str = "train/loss"
) -> pd.DataFrame:
    """One row an arm.

    Args:
        curves: of the trials that count.
        trials: `id, arm, seed` of them; trials of one seed are compared.
        metric: the column.

    Returns:
        `residual_sd` of one step around its own trend; `shared` the share of its variance that goes
        together with the mean of the other arms, which the data explain; `own_sd` of the rest;
        `correlation` with that mean; `worst_step` where the arm stands highest above it, by
        `worst` standard deviations of that difference.
    """
    if metric not in curves or not len(curves):
        return pd.DataFrame(columns=COLUMNS)
    place = dict(curve_slices(curves, set(trials["id"])))
    step, value = curves["step"].to_numpy(), curves[metric].to_numpy(dtype=float)
    collected: dict[str, list[tuple[float, float, float, int, float]]] = {}
    for _, group in trials[trials["id"].isin(place)].groupby("seed", sort=True):
        group = group.drop_duplicates("arm")
        if len(group) < 2:
            continue
        rows = [place[i] for i in group["id"]]
        common = step[rows[0]]
        same = [r for r in rows if np.array_equal(step[r], common)]
        if len(same) < len(rows) or len(common) < 2 * _WINDOW:
            continue
        table = np.stack([value[r] for r in rows])
        around = table - uniform_filter1d(table, _WINDOW, axis=1, mode="nearest")
        # The first tenth falls too steeply for a window's mean to be its trend.
        begin = max(_WINDOW, len(common) // 10)
        around, at = around[:, begin:], common[begin:]
        others = (around.sum(axis=0) - around) / (len(around) - 1)
        for arm, mine, rest in zip(group["arm"], around, others, strict=True):
            if not (np.isfinite(mine).all() and np.isfinite(rest).all()) or mine.std() == 0:
                continue
            # What is shared is what goes together; the mean of the others has noise of its own.
            shared = float(np.mean((mine - mine.mean()) * (rest - rest.mean())))
            own = mine - rest
            peak = int(np.argmax(own))
            r = float(np.corrcoef(mine, rest)[0, 1]) if rest.std() > 0 else 0.0
            high = float(own[peak] / own.std()) if own.std() else 0.0
            collected.setdefault(arm, []).append(
                (float(mine.var()), shared, r, int(at[peak]), high)
            )
    out = []
    for arm in dict.fromkeys(trials["arm"]):
        if arm not in collected:
            continue
        total, shared, r, at, high = map(np.array, zip(*collected[arm], strict=True))
        worst = int(np.argmax(high))
        both = float(np.clip(shared.mean(), 0.0, total.mean()))
        out.append(
            {
                "arm": arm,
                "residual_sd": float(np.sqrt(total.mean())),
                "own_sd": float(np.sqrt(total.mean() - both)),
                "shared": both / float(total.mean()),
                "correlation": float(r.mean()),
                "worst_step": int(at[worst]),
                "worst": float(high[worst]),
                "seeds": len(total),
            }
        )
    return pd.DataFrame(out, columns=COLUMNS)
