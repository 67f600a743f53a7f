"""Several studies side by side: the effect of an arm in each, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["COLUMNS", "compare_studies"]

_OWN = ["arm", "difference", "low", "high", "verdict", "seeds", "diverged"]
_POOLED = ["pooled", "pooled_low", "pooled_high", "p_agree"]
COLUMNS = ["change", "study", *_OWN, *_POOLED, "note"]


def compare_studies(
    tables: Mapping[str, pd.DataFrame],
    changes: Mapping[str, Mapping[str, Sequence[str]]],
    freedom: Mapping[str, int],
    *,
    alpha: float = 0.05,
    refuse: Callable[[Mapping[str, str]], str] = lambda arms: "",
) -> pd.DataFrame:
    """One row a change and study, for the changes that at least two studies made.

    Arms are the same if they change the same fields in the same way, whatever they are called.

    Args:
        tables: effects of each study.
        changes: of each study, arm -> what it changes against its reference.
        freedom: degrees of freedom of each study's noise.
        alpha: level of the pooled interval, each change by itself.
        refuse: why the effects of these arms (study -> arm) are not one, if they are not.

    Returns:
        `pooled` is the mean over studies weighted by their seeds (on the row of every study of
        that change): weights of the estimated precision, as is usual with hundreds of samples,
        would make an interval of 95 % cover 73 with three seeds. `p_agree` is Welch's test that
        the effects are one: below 0.05 the studies disagree and the pooled value means little.
        `note` says why there is none.
    """
    rows = []
    for study, table in tables.items():
        for row in table.to_dict("records"):
            said = "; ".join(sorted(changes.get(study, {}).get(row["arm"], ())))
            if isinstance(row["reference"], str) and said:
                lost = (
                    row["diverged"] + table.loc[table["arm"] == row["reference"], "diverged"].sum()
                )
                kept = {k: row[k] for k in _OWN} | {"error": row["error"], "lost": lost}
                rows.append({"change": said, "study": study, **kept})
    frame = pd.DataFrame(rows, columns=["change", "study", "error", "lost", *_OWN])
    shared = frame.groupby("change", sort=False)["study"].transform("nunique") >= 2
    frame = frame[shared].copy()
    frame[_POOLED] = np.nan
    frame["note"] = ""
    for _, group in frame.groupby("change", sort=False):
        reason = refuse(dict(zip(group["study"], group["arm"], strict=True)))
        known = group[np.isfinite(group["error"]) & (group["error"] > 0)]
        if not reason and group["lost"].any():
            reason = "trials diverged, and the survivors' mean is not the arm's"
        if not reason and len(known) < len(group):
            reason = "a study without an interval has no weight"
        if not reason and group["study"].duplicated().any():
            reason = "a study made the change in two arms"
        if reason:
            frame.loc[group.index, "note"] = f"not pooled: {reason}"
            continue
        df = known["study"].map(dict(freedom)).to_numpy(float)
        values = _pool(*known[["difference", "error", "seeds"]].to_numpy(float).T, df, alpha)
        frame.loc[group.index, _POOLED] = values
    order = {c: i for i, c in enumerate(dict.fromkeys(frame["change"]))}
    return frame.sort_values("change", key=lambda c: c.map(order), kind="stable")[
        COLUMNS
    ].reset_index(drop=True)


def _pool(
    d: np.ndarray, error: np.ndarray, seeds: np.ndarray, df: np.ndarray, alpha: float
) -> list[float]:
    """The mean, its interval (degrees of freedom by Satterthwaite), and the p of agreement (Welch
    1951, whose weights are the estimated precisions and whose distribution knows it).
    """
    share, k = seeds / seeds.sum(), len(d)
    mean = float(share @ d)
    parts = (share * error) ** 2
    half = float(stats.t.isf(alpha / 2, parts.sum() ** 2 / (parts**2 / df).sum()))
    half *= float(np.sqrt(parts.sum()))
    weight = 1 / error**2
    apart = float(weight @ (d - weight @ d / weight.sum()) ** 2) / (k - 1)
    loss = float(((1 - weight / weight.sum()) ** 2 / df).sum())
    f = apart / (1 + 2 * (k - 2) / (k**2 - 1) * loss)
    return [mean, mean - half, mean + half, float(stats.f.sf(f, k - 1, (k**2 - 1) / 3 / loss))]
