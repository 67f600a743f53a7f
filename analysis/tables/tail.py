"""Noise from the last validations of a trial: an error bar that costs no second seed.

The spread of late checkpoints around their own trend (arXiv 2508.13144). It is a lower bound of the
spread between seeds, which also holds what initialisation and data order do.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ["tail_noise"]


def tail_noise(
    curves: pd.DataFrame, metric: str, *, last: int = 10, within: float = 0.25
) -> pd.DataFrame:
    """One row an arm: `arm, tail_sd, seed_sd, validations, seeds`.

    Args:
        curves: of `Frames` (or a part of it).
        metric: the column.
        last: validations at most.
        within: of the training's end, as a share; fewer than three there say nothing.
    """
    columns = ["arm", "tail_sd", "seed_sd", "validations", "seeds"]
    if metric not in curves:
        return pd.DataFrame(columns=columns)
    value = curves[metric].to_numpy(dtype=float)
    step = curves["step"].to_numpy()
    late = np.isfinite(value) & (step > step.max(initial=0) * (1 - within))
    rows = []
    kept = curves.loc[late, ["id", "arm", "step"]].assign(value=value[late])
    for arm, group in kept.groupby("arm", sort=False, observed=True):
        spreads, finals, counts = [], [], []
        for _, trial in group.groupby("id", sort=False, observed=True):
            y, x = trial["value"].to_numpy()[-last:], trial["step"].to_numpy(float)[-last:]
            if len(y) < 3:
                continue
            rest = y - np.polyval(np.polyfit(x - x.mean(), y, 1), x - x.mean())
            spreads.append(float(rest @ rest / (len(y) - 2)))
            finals.append(float(y[-1]))
            counts.append(len(y))
        if spreads:
            between = float(np.std(finals, ddof=1)) if len(finals) > 1 else np.nan
            rows.append(
                (str(arm), float(np.sqrt(np.mean(spreads))), between, min(counts), len(finals))
            )
    return pd.DataFrame(rows, columns=columns)
