"""Factorials and ladders: interaction plot, half-normal plot, attribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ablate.analysis.material import Material
from ablate.analysis.palette import LEGEND, VERDICT_COLOURS, arm_colours
from ablate.analysis.tables.attribution import TOTAL
from ablate.analysis.tables.factorial import interaction_means

__all__ = ["attribution", "half_normal", "interaction"]

_MARGIN = {"l": 10, "r": 10, "t": 30, "b": 45}


def interaction(table: pd.DataFrame, m: Material) -> dict[str, Any] | None:
    """The pair of factors with the largest interaction: parallel lines mean there is none."""
    pairs = table[table["kind"] == "interaction"]
    if not len(pairs):
        return None
    term = pairs.loc[pairs["t"].abs().idxmax(), "term"]
    first, second = (word.partition("=")[0] for word in term.split(" × "))
    means = interaction_means(m.j.values, m.levels, first, second)
    labels = list(dict.fromkeys(means["second"]))
    colours = arm_colours(labels, labels[0])
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": own["first"].tolist(),
            "y": own["mean"].tolist(),
            "name": f"{second}: {label}",
            "line": {"color": colours[label], "width": 2},
            "marker": {"size": 9},
            "hovertemplate": "%{x}: %{y:.4f}",
        }
        for label in labels
        for own in [means[means["second"] == label]]
    ]
    layout = {
        "height": 320,
        "margin": _MARGIN,
        "xaxis": {
            "title": {"text": first},
            "type": "category",
            "automargin": True,
            "range": [-0.5, means["first"].nunique() - 0.5],  # room for the outer labels
        },
        "yaxis": {"title": {"text": m.j.rule.metric}, "automargin": True, "zeroline": False},
        "legend": LEGEND,
    }
    return {"data": data, "layout": layout}


def half_normal(table: pd.DataFrame, m: Material) -> dict[str, Any] | None:
    """|t| against half-normal quantiles: what is nothing but noise lies on the line."""
    if len(table) < 3:
        return None
    t = table["t"].abs().to_numpy()
    order = np.argsort(t, kind="stable")
    quantile = stats.halfnorm.ppf((np.arange(len(t)) + 0.5) / len(t))
    colours = [
        VERDICT_COLOURS["better" if table["p_holm"].iloc[i] < m.j.rule.alpha else "baseline"]
        for i in order
    ]
    top = float(min(max(quantile[-1], 1.0), max(t.max(), 1.0)))
    data = [
        {"type": "scatter", "mode": "lines", "x": [0, top], "y": [0, top], "hoverinfo": "skip",
         "line": {"color": VERDICT_COLOURS["baseline"], "dash": "dot"}, "showlegend": False},
        {"type": "scatter", "mode": "markers+text", "x": np.round(quantile, 4).tolist(),
         "y": np.round(t[order], 4).tolist(), "text": table["term"].iloc[order].tolist(),
         "textposition": "top left", "cliponaxis": False,
         "marker": {"size": 9, "color": colours}, "showlegend": False,
         "hovertemplate": "%{text}: |t| = %{y:.2f}<extra></extra>"},
    ]  # fmt: skip
    layout = {
        "height": 340,
        "margin": _MARGIN,
        "xaxis": {"title": {"text": "half-normal quantile"}, "zeroline": False},
        "yaxis": {"title": {"text": "|t|"}, "automargin": True, "zeroline": False},
    }
    return {"data": data, "layout": layout}


def attribution(table: pd.DataFrame, m: Material) -> dict[str, Any]:
    """A bar a step, with its interval; the total apart."""
    better = -1 if m.j.rule.lower_is_better else 1
    colours = [
        VERDICT_COLOURS["baseline" if s == TOTAL else "better" if g * better > 0 else "worse"]
        for s, g in zip(table["step"], table["gain"], strict=True)
    ]
    bars = np.nan_to_num(table["high"] - table["gain"])
    data = [
        {"type": "bar", "orientation": "h", "y": table["step"].tolist(),
         "x": table["gain"].tolist(), "marker": {"color": colours},
         "error_x": {"type": "data", "array": bars.tolist()}, "showlegend": False,
         "hovertemplate": "%{y}: %{x:+.4f}<extra></extra>"},
    ]  # fmt: skip
    layout = {
        "height": 90 + 32 * len(table),
        "margin": _MARGIN,
        "xaxis": {"title": {"text": f"change of {m.j.rule.metric}"}},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
    }
    return {"data": data, "layout": layout}
