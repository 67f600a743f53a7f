"""Learning-rate brackets: every arm is judged at its own best learning rate, if the bracket shows
a best one.
"""

from __future__ import annotations

import pandas as pd

__all__ = ["choose_lr"]


def choose_lr(trials: pd.DataFrame, metric: str, *, lower_is_better: bool = True) -> pd.DataFrame:
    """One row an arm: `arm, lr, edge, rates`; lr is NaN where the arm has no bracket.

    The best is the learning rate with the fewest diverged trials, and among those the best mean
    over seeds. `edge` says that it is the lowest or highest of the bracket: a better one may lie
    outside.

    Args:
        trials: ended trials with columns arm, lr, `ok` (whether there is a final value) and the
            metric.
        metric: the column that is compared.
        lower_is_better: its direction.
    """
    rows = []
    for arm, group in trials.groupby("arm", sort=False):
        rates = sorted(group["lr"].dropna().unique())
        if not rates:
            rows.append((arm, float("nan"), False, 0))
            continue
        sign = 1.0 if lower_is_better else -1.0
        score = {}
        for rate in rates:
            at = group[group["lr"] == rate]
            values = at.loc[at["ok"], metric]
            mean = sign * float(values.mean()) if len(values) else float("inf")
            score[rate] = (int((~at["ok"]).sum()), mean)
        best = min(rates, key=lambda rate: score[rate])
        rows.append(
            (arm, float(best), len(rates) > 1 and best in (rates[0], rates[-1]), len(rates))
        )
    return pd.DataFrame(rows, columns=["arm", "lr", "edge", "rates"])
