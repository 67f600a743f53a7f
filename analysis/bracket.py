"""Learning-rate brackets: every arm is judged at its own best learning rate, if the bracket shows
a best one.

The seed that judges has no say in the choice: its learning rate is the one that is best on the
other seeds of the arm, so that a bracket of five does not pick the luckiest of five.
"""

from __future__ import annotations

import pandas as pd

from ablate.analysis.rule import Rule

__all__ = ["choose_by_seed", "choose_lr", "chooser"]


def chooser(rule: Rule, frozen: Rule, ended: pd.DataFrame) -> Rule:
    """By whose metric learning rates are chosen. Speed, time and memory have no best rate: they are
    compared at the rate that is best by the frozen metric.
    """
    cost = "/" not in rule.metric or rule.metric.startswith("time/")
    return frozen if cost and frozen.metric != rule.metric and frozen.metric in ended else rule


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
        best = _best(group, rates, metric, lower_is_better)
        edge = len(rates) > 1 and best in (rates[0], rates[-1])
        rows.append((arm, best, edge, len(rates)))
    return pd.DataFrame(rows, columns=["arm", "lr", "edge", "rates"])


def choose_by_seed(
    trials: pd.DataFrame, metric: str, *, lower_is_better: bool = True
) -> pd.DataFrame:
    """One row an arm and seed: `arm, seed, lr`, the best on the other seeds of that arm.

    An arm with a single seed has no others: its own chooses (and a single seed judges nothing).
    """
    rows = []
    for arm, group in trials.groupby("arm", sort=False):
        rates = sorted(group["lr"].dropna().unique())
        seeds = sorted(group["seed"].unique())
        if len(rates) < 2:  # nothing to choose
            only = float(rates[0]) if rates else float("nan")
            rows += [(arm, seed, only) for seed in seeds]
            continue
        for seed in seeds:
            others = group[group["seed"] != seed]
            source = others if len(others) else group
            rows.append((arm, seed, _best(source, rates, metric, lower_is_better)))
    return pd.DataFrame(rows, columns=["arm", "seed", "lr"])


def _best(group: pd.DataFrame, rates: list[float], metric: str, lower_is_better: bool) -> float:
    """Fewest diverged, then the best mean over seeds; not a number without a bracket."""
    if len(rates) < 2:
        return float(rates[0]) if rates else float("nan")
    sign = 1.0 if lower_is_better else -1.0
    score = {}
    for rate in rates:
        at = group[group["lr"] == rate]
        values = at.loc[at["ok"], metric]
        mean = sign * float(values.mean()) if len(values) else float("inf")
        score[rate] = (int((~at["ok"]).sum()), mean)
    return float(min(rates, key=lambda rate: score[rate]))
