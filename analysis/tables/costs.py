"""What the arms cost, and which of them are worth it: nothing is both better and cheaper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

__all__ = ["COSTS", "costs", "pareto"]

COSTS = {"flops": "compute", "seconds": "time", "peak_memory": "memory"}
"""Columns that a front is drawn over."""
_MEMORY = ("peak_memory", "peak_memory_bytes", "memory/peak", "max_memory")


def costs(table: pd.DataFrame, trials: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """One row an arm: medians over its trials, and their ratio to the baseline's.

    Args:
        table: `arm, mean` of the verdicts.
        trials: those that count, with what their summaries recorded.
        baseline: the arm whose cost is 1.
    """
    out = table[["arm", "mean"]].copy()
    memory = next((c for c in _MEMORY if c in trials and trials[c].notna().any()), None)
    wanted = {c: c for c in ("parameters", "flops_per_token", "flops", "tokens", "seconds")}
    wanted |= {"tokens_per_second": "tokens_per_second"}
    wanted |= {"peak_memory": memory} if memory else {}
    for name, source in wanted.items():
        if source in trials:
            values = pd.to_numeric(trials[source]).groupby(trials["arm"]).median()
            out[name] = out["arm"].map(values).astype(float)
    for name in ("parameters", "flops", "seconds", "peak_memory", "tokens_per_second"):
        base = out.loc[out["arm"] == baseline, name] if name in out else []
        if len(base) and np.isfinite(base.iloc[0]) and base.iloc[0]:
            out[f"{name}_ratio"] = out[name] / base.iloc[0]
    return out


def pareto(
    table: pd.DataFrame, over: Sequence[str] = tuple(COSTS), *, lower_is_better: bool = True
) -> pd.DataFrame:
    """One row an arm and kind of cost: `arm, cost, amount, mean, front`.

    An arm is on the front if no other is at least as good and as cheap, and better in one of them.
    It compares means: an arm may be on the front, or miss it, by noise.

    Args:
        table: of `costs`.
        over: columns of costs.
        lower_is_better: direction of `mean`.
    """
    rows = []
    for cost in over:
        if cost not in table:
            continue
        kept = table[np.isfinite(table["mean"]) & np.isfinite(table[cost])]
        y = kept["mean"].to_numpy() * (1 if lower_is_better else -1)
        x = kept[cost].to_numpy()
        for i, row in enumerate(kept[["arm", cost, "mean"]].to_numpy()):
            beaten = (y <= y[i]) & (x <= x[i]) & ((y < y[i]) | (x < x[i]))
            rows.append((row[0], cost, float(row[1]), float(row[2]), not beaten.any()))
    return pd.DataFrame(rows, columns=["arm", "cost", "amount", "mean", "front"])
