"""Numbers for people: one table of strings that the terminal, Markdown, LaTeX and the page
share.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ablate.analysis.judgement import Judgement

__all__ = ["count", "decimals", "display", "explain", "fixed", "headline", "level", "short", "si"]

_CORRECTION = {
    "dunnett": "Dunnett",
    "holm": "Holm",
    "bonferroni": "Bonferroni",
    "none": "no correction",
}


def display(j: Judgement) -> pd.DataFrame:
    """One row an arm, all strings: arm, reference, seeds, mean, difference, interval, p, verdict,
    note ...
    """
    d = decimals(j)
    rows = []
    for row in j.table.to_dict("records"):
        diverged = f" ({row['diverged']} div.)" if row["diverged"] else ""
        rows.append(
            {
                "arm": row["arm"],
                "reference": row["reference"] if isinstance(row["reference"], str) else "",
                "seeds": f"{row['seeds']}{diverged}",
                # The survivors' mean is never shown alone.
                "mean": _number(row["mean"], d)
                + (
                    f" ({row['seeds']}/{row['seeds'] + row['diverged']})" if row["diverged"] else ""
                ),
                "difference": _number(row["difference"], d, sign=True),
                "interval": _interval(row["low"], row["high"], d),
                "p": _p(row["p"]),
                "baseline_difference": _number(row["baseline_difference"], d, sign=True),
                "baseline_interval": _interval(row["baseline_low"], row["baseline_high"], d),
                "verdict": row["verdict"],
                "note": row["note"],
                "lr": f"{row['lr']:g}" if row["lr"] == row["lr"] else "",
                "parameters": si(row.get("parameters")),
                "flops": si(row.get("flops")),
                "speed": si(row.get("tokens_per_second")),
            }
        )
    return pd.DataFrame(rows)


def decimals(j: Judgement) -> int:
    """Two digits of the smallest effect that matters (or of the noise)."""
    scale = j.rule.smallest_effect or j.fit.sigma
    if not np.isfinite(scale) or scale <= 0:
        return 4
    return min(8, max(2, math.ceil(-math.log10(scale)) + 1))


def headline(j: Judgement) -> str:
    """The result in one sentence."""
    verdicts = j.table.loc[j.table["verdict"] != "baseline", "verdict"]
    if not len(verdicts):
        return "There is nothing to compare: the study has a single arm."
    said = [
        f"{n} {v}"
        for v in ("better", "worse", "equivalent", "undecided", "edge")
        if (n := (verdicts == v).sum())
    ]
    against = j.baseline if not j.ladder else _reference(j, "their references")
    return f"Of {count(len(verdicts), 'arm')} against {against}: {', '.join(said)}."


def _reference(j: Judgement, several: str) -> str:
    return "the previous rung" if j.rungs else several


def explain(j: Judgement) -> str:
    """How it was judged, in a few sentences."""
    better = "lower" if j.rule.lower_is_better else "higher"
    how = "seed by seed" if j.fit.blocked else "between arms with seeds of their own"
    against = j.baseline if not j.ladder else _reference(j, "each arm's reference")
    noise = f"noise sd {j.fit.sigma:.2g} of a trial, pooled over arms ({j.fit.df} df)"
    if j.fit.df <= 0:
        lost = (j.table["diverged"] > 0).any() or j.table["seeds"].max() > 1
        rest = "the trials with a value" if lost else "one seed"
        noise = f"the noise cannot be estimated from {rest}"
    return (
        f"{j.rule.metric}, {better} is better. Differences to {against}, {how}; {noise}; "
        f"{_CORRECTION[j.rule.correction]}, alpha {short(j.rule.alpha)}; "
        f"smallest effect that matters {j.rule.smallest_effect:g}."
    )


def short(value: float) -> str:
    """A level or its complement, by four digits: 0.05, 0.0448 and, of looks, 0.004477."""
    return f"{value:.4g}"


def level(j: Judgement) -> str:
    """Of the intervals: "95 %"; at an early look "99.55 %". Never rounded up to 100."""
    percent = 100 * (1 - j.rule.alpha)
    return f"{percent:.4g} %" if percent < 99.99 else f"{percent:.8g} %"


def count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def si(value: object) -> str:
    """1.2M, 3.4e9 as 3.4G; empty where there is nothing."""
    if not isinstance(value, int | float) or not np.isfinite(value):
        return ""
    if abs(value) >= 1e21:
        return f"{value:.3g}"
    for factor, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def fixed(value: float, d: int, *, sign: bool = False) -> str:
    """So many decimals; a power of ten where that would be a hundred digits."""
    form = f".{d}f" if abs(value) < 1e9 else ".4g"
    return f"{value:{'+' if sign else ''}{form}}"


def _number(value: float, d: int, *, sign: bool = False) -> str:
    if not np.isfinite(value):
        return ""
    return fixed(value, d, sign=sign)


def _interval(low: float, high: float, d: int) -> str:
    if not (np.isfinite(low) and np.isfinite(high)):
        return ""
    return f"[{fixed(low, d, sign=True)}, {fixed(high, d, sign=True)}]"


def _p(p: float) -> str:
    if not np.isfinite(p):
        return ""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
