"""Several studies side by side: the effect of an arm in each, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["COLUMNS", "compare_studies"]

COLUMNS = ["change", "study", "arm", "difference", "low", "high", "verdict", "seeds", "pooled",
           "pooled_low", "pooled_high", "p_agree"]  # fmt: skip


def compare_studies(
    tables: Mapping[str, pd.DataFrame],
    changes: Mapping[str, Mapping[str, Sequence[str]]],
    *,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """One row a change and study, for the changes that at least two studies made.

    Arms are the same if they change the same fields in the same way, whatever they are called.

    Args:
        tables: effects of each study.
        changes: of each study, arm -> what it changes against its reference.
        alpha: level of the pooled interval.

    Returns:
        `pooled` is the mean over studies weighted by precision (fixed effect; on the row of every
        study of that change), `p_agree` Cochran's test that the effects are one: below 0.05 the
        studies disagree and the pooled value means little.
    """
    rows = []
    for study, table in tables.items():
        for row in table.to_dict("records"):
            said = "; ".join(sorted(changes.get(study, {}).get(row["arm"], ())))
            if isinstance(row["reference"], str) and said:
                kept = {k: row[k] for k in ("arm", "difference", "low", "high", "verdict", "seeds")}
                rows.append({"change": said, "study": study, "error": row["error"], **kept})
    frame = pd.DataFrame(rows, columns=["change", "study", "error", *COLUMNS[2:8]])
    shared = frame.groupby("change", sort=False)["study"].transform("nunique") >= 2
    frame = frame[shared].copy()
    for column in COLUMNS[8:]:
        frame[column] = np.nan
    for _, group in frame.groupby("change", sort=False):
        known = group[np.isfinite(group["error"]) & (group["error"] > 0)]
        if len(known) < 2:
            continue
        weight = 1 / known["error"].to_numpy() ** 2
        d = known["difference"].to_numpy()
        mean = float(weight @ d / weight.sum())
        half = float(stats.norm.isf(alpha / 2) / np.sqrt(weight.sum()))
        q = float(weight @ (d - mean) ** 2)
        values = [mean, mean - half, mean + half, float(stats.chi2.sf(q, len(known) - 1))]
        frame.loc[group.index, COLUMNS[8:]] = values
    order = {c: i for i, c in enumerate(dict.fromkeys(frame["change"]))}
    return frame.sort_values("change", key=lambda c: c.map(order), kind="stable")[
        COLUMNS
    ].reset_index(drop=True)
