"""Main effects and two-way interactions of a factorial: least squares with the seed as a block.

Levels are coded as an indicator minus the share of levels, so that a main effect is the mean
difference to the baseline's level over all levels of the other factors, and an interaction is by
how much the effect of one factor changes when the other's level is on (a difference of
differences).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from ablate.analysis.multiplicity import adjust

__all__ = ["COLUMNS", "factor_effects", "interaction_means"]

COLUMNS = ["term", "kind", "effect", "low", "high", "t", "p", "p_holm", "aliases"]


def factor_effects(
    values: pd.DataFrame,
    levels: Mapping[str, Mapping[str, str]],
    baseline: str,
    *,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """One row a main effect and a two-way interaction, with an interval of its own (1 - alpha).

    Args:
        values: `arm, seed, value`; what is not finite is left out.
        levels: of each arm, factor -> label.
        baseline: the arm whose labels are the base levels.
        alpha: level of each interval; `p_holm` is adjusted over all rows.

    Returns:
        `aliases` names what the design cannot tell apart from the term: the estimate is their sum.
    """
    kept = values[np.isfinite(values["value"].to_numpy(float)) & values["arm"].isin(levels)]
    base = levels.get(baseline, {})
    columns = _columns(kept["arm"].tolist(), levels, base)
    if not columns or not len(kept):
        return pd.DataFrame(columns=COLUMNS)
    block = pd.get_dummies(kept["seed"]).to_numpy(float)  # an intercept a seed
    blocks = basis = np.linalg.qr(block)[0]
    names: list[str] = []
    aliases: dict[str, list[str]] = {}
    design, left = [], []
    for name, x in columns.items():
        rest, own = (x - b @ (b.T @ x) for b in (basis, blocks))
        if np.linalg.norm(rest) > 1e-8 * np.linalg.norm(x):
            basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
            names.append(name)
            design.append(x)
            left.append(own)
            continue
        for known, y in zip(names, left, strict=True):
            r = float(own @ y / max(np.linalg.norm(own) * np.linalg.norm(y), 1e-300))
            if abs(r) > 1e-6:
                aliases.setdefault(known, []).append(("" if r > 0 else "-") + name)
    from statsmodels.regression.linear_model import OLS  # a second, for factorials alone

    y = kept["value"].to_numpy(float)
    result = OLS(y - y.mean(), np.column_stack([block, *design])).fit()
    if result.df_resid < 1:
        return pd.DataFrame(columns=COLUMNS)
    k = block.shape[1]
    interval = result.conf_int(alpha)[k:]
    t, df = np.nan_to_num(np.asarray(result.tvalues)[k:]), int(result.df_resid)
    p = np.nan_to_num(np.asarray(result.pvalues)[k:], nan=1.0)
    return pd.DataFrame(
        {
            "term": names,
            "kind": ["interaction" if " × " in n else "main" for n in names],
            "effect": np.asarray(result.params)[k:],
            "low": interval[:, 0],
            "high": interval[:, 1],
            "t": t,
            "p": p,
            "p_holm": adjust(t, np.eye(len(t)), df, alpha=alpha, correction="holm")[1],
            "aliases": [", ".join(aliases.get(n, [])) for n in names],
        },
        columns=COLUMNS,
    )


def _columns(
    arms: list[str], levels: Mapping[str, Mapping[str, str]], base: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """A column a main effect, then one a two-way interaction."""
    factors = [f for f in base if len({levels[a].get(f) for a in levels}) > 1]
    main: dict[str, dict[str, np.ndarray]] = {}
    for factor in factors:
        own = [levels[a].get(factor, base[factor]) for a in arms]
        labels = dict.fromkeys(own)
        share = 1 / len(labels)
        several = len(labels) > 2
        main[factor] = {
            (f"{factor}={label}" if several else factor): np.array([o == label for o in own], float)
            - share
            for label in labels
            if label != base[factor]
        }
    out = {name: x for group in main.values() for name, x in group.items()}
    for f, g in combinations(factors, 2):
        for (a, x), (b, z) in ((i, j) for i in main[f].items() for j in main[g].items()):
            out[f"{a} × {b}"] = x * z
    return out


def interaction_means(
    values: pd.DataFrame, levels: Mapping[str, Mapping[str, str]], first: str, second: str
) -> pd.DataFrame:
    """`first, second, mean, seeds`: the mean over seeds and the other factors at each pair of
    levels.
    """
    kept = values[np.isfinite(values["value"].to_numpy(float)) & values["arm"].isin(levels)]
    frame = kept.assign(
        first=[levels[a].get(first) for a in kept["arm"]],
        second=[levels[a].get(second) for a in kept["arm"]],
    )
    grouped = frame.groupby(["first", "second"], sort=False)["value"]
    return grouped.agg(mean="mean", seeds="size").reset_index()
