"""The verdicts as a forest plot: a judgement in, a plotly figure out (see `figures`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.display import decimals, fixed, level
from ablate.analysis.judgement import Judgement
from ablate.analysis.palette import LEGEND, VERDICT_COLOURS, translucent

__all__ = ["effects_figure", "seed_differences", "span"]


def seed_differences(j: Judgement) -> pd.DataFrame:
    """One row an arm and seed that its reference has too: `arm, seed, difference`."""
    trials = j.frames.trials
    metric = j.rule.metric
    if metric not in trials:
        return pd.DataFrame(columns=["arm", "seed", "difference"])
    counted = trials[trials["id"].isin(j.finished)]
    cell = counted.groupby(["arm", "seed"])[metric].mean()
    final: dict[str, dict[int, float]] = {}
    for (arm, seed), value in cell.items():
        final.setdefault(str(arm), {})[int(seed)] = float(value)
    compared = j.table.loc[j.table["verdict"] != "baseline", ["arm", "reference"]]
    rows = []
    for arm, reference in compared.to_numpy():
        other = final.get(reference, {})
        differences = ((s, v - other[s]) for s, v in final.get(arm, {}).items() if s in other)
        rows += [(arm, s, d) for s, d in differences if np.isfinite(d)]
    return pd.DataFrame(rows, columns=["arm", "seed", "difference"])


def effects_figure(j: Judgement) -> dict[str, Any]:
    """A forest plot: the difference of each arm to its reference, its intervals, and each seed."""
    table = j.table[j.table["verdict"] != "baseline"]
    seeds = seed_differences(j)
    digits = decimals(j)
    data: list[dict[str, Any]] = []
    shown: set[str] = set()
    for row in table.to_dict("records"):
        own = seeds[seeds["arm"] == row["arm"]]
        data += _forest_row(row, own, digits, level(j))
        data[-1]["showlegend"] = row["verdict"] not in shown
        shown.add(row["verdict"])
    against = "reference" if j.ladder else str(j.baseline)
    better = "← better" if j.rule.lower_is_better else "better →"
    edge = j.rule.smallest_effect
    matters = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": -edge,
        "x1": edge,
        "y0": 0,
        "y1": 1,
    }
    layout = {
        "height": 110 + 34 * max(len(table), 2),
        "margin": {"l": 10, "r": 10, "t": 10, "b": 50},
        "xaxis": {
            "title": {"text": f"{j.rule.metric} minus {against}   ({better})"},
            "zeroline": True,
            "range": span([table["low"], table["high"], seeds["difference"], table["difference"]]),
        },
        "yaxis": {
            "type": "category",
            "categoryarray": table["arm"].tolist()[::-1],
            "categoryorder": "array",
            "automargin": True,
            "showgrid": False,
            "range": [-0.6, len(table) - 0.4],
        },
        "shapes": [
            matters
            | {"fillcolor": "rgba(138,143,152,0.16)", "line": {"width": 0}, "layer": "below"}
        ],
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def _forest_row(
    row: dict[str, Any], own: pd.DataFrame, digits: int, percent: str
) -> list[dict[str, Any]]:
    """The marks of one arm; the last is its estimate."""
    colour, arm = VERDICT_COLOURS[row["verdict"]], row["arm"]
    marks: list[dict[str, Any]] = []
    interval = ""
    if np.isfinite(row["low"]):
        ends = [fixed(row[k], digits, sign=True) for k in ("low", "high")]
        interval = f"<br>{percent} [{ends[0]}, {ends[1]}]"
        marks += [
            {
                "type": "scatter",
                "x": [low, high],
                "y": [arm, arm],
                "mode": "lines",
                "line": {"color": translucent(colour, alpha), "width": width},
                "hoverinfo": "skip",
                "showlegend": False,
            }
            for low, high, width, alpha in (
                (row["low"], row["high"], 3, 0.9),
                (row["equivalent_low"], row["equivalent_high"], 8, 0.35),
            )
        ]
    known = np.isfinite(row["difference"])
    return [
        *marks,
        {
            "type": "scatter",
            "x": own["difference"].tolist(),
            "y": [arm] * len(own),
            "mode": "markers",
            "marker": {
                "color": colour,
                "size": 9,
                "symbol": "line-ns",
                "line": {"color": colour, "width": 1.5},
            },
            "text": [f"seed {s}" for s in own["seed"]],
            "hovertemplate": f"%{{text}}: %{{x:+.{digits}f}}<extra>{arm}</extra>",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "x": [row["difference"] if known else None],
            "y": [arm],
            "mode": "markers",
            "marker": {"color": colour, "size": 11},
            "name": row["verdict"],
            "legendgroup": row["verdict"],
            "hovertemplate": f"<b>{arm}</b>: %{{x:+.{digits}f}}{interval}<br>{row['verdict']}"
            "<extra></extra>",
        },
    ]


def span(parts: Sequence[pd.Series]) -> list[float]:
    """The range of an axis that shows all of them and zero."""
    values = np.concatenate([p.to_numpy(dtype=float) for p in parts])
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    pad = 0.06 * (high - low or 1.0)
    return [low - pad, high + pad]
