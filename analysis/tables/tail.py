"""Noise from the last validations of a trial: an error bar that costs no second seed.

The spread of late checkpoints around their own trend (arXiv 2508.13144). It is a lower bound of the
spread between seeds, which also holds what initialisation and data order do.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ablate.analysis.tables.stability import curve_slices

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
    found: dict[str, list[tuple[float, float, int]]] = {}
    kept = curves.loc[late, ["id", "arm", "step"]].assign(value=value[late])
    for _, rows_ in curve_slices(kept):
        y = kept["value"].to_numpy()[rows_][-last:]
        x = kept["step"].to_numpy(float)[rows_][-last:]
        if len(y) >= 3:
            x = x - x.mean()
            rest = y - y.mean() - x * float(x @ y) / float(x @ x)
            arm = str(kept["arm"].iloc[rows_.start])
            spread = float(rest @ rest / (len(y) - 2))
            found.setdefault(arm, []).append((spread, float(y[-1]), len(y)))
    rows = []
    for arm, trials in found.items():
        spreads, finals, counts = zip(*trials, strict=True)
        between = float(np.std(finals, ddof=1)) if len(finals) > 1 else np.nan
        rows.append((arm, float(np.sqrt(np.mean(spreads))), between, min(counts), len(finals)))
    return pd.DataFrame(rows, columns=columns)
