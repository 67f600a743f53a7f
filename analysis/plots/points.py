"""Points over a scale: U-curves, the Pareto front, scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.material import Material
from ablate.analysis.palette import LEGEND, arm_colours
from ablate.analysis.parts import sized
from ablate.analysis.plots.labels import place_labels
from ablate.analysis.tables.costs import COSTS

__all__ = ["pareto", "scaling", "u_curve"]

_MARGIN = {"l": 10, "r": 10, "t": 10, "b": 45}
_MOST = 40
"""Arms whose names are written beside their points."""


def u_curve(table: pd.DataFrame, m: Material) -> dict[str, Any]:
    """Final value over the learning rate, a line an arm; crosses at the top: all seeds diverged."""
    arms = [a for a in m.effects["arm"] if (table["arm"] == a).any()]
    colours = arm_colours(arms, m.j.baseline)
    top = float(np.nanmax(table["high"].to_numpy(float), initial=-np.inf))
    data: list[dict[str, Any]] = []
    for arm in arms:
        own = table[table["arm"] == arm]
        known = own[np.isfinite(own["mean"])]
        data.append(
            {"type": "scatter", "mode": "lines+markers", "x": known["lr"].tolist(),
             "y": known["mean"].tolist(), "name": arm, "legendgroup": arm,
             "line": {"color": colours[arm], "width": 2},
             "error_y": {"type": "data", "symmetric": False, "thickness": 1,
                         "array": (known["high"] - known["mean"]).tolist(),
                         "arrayminus": (known["mean"] - known["low"]).tolist()},
             "hovertemplate": "lr %{x:g}: %{y:.4f}"}
        )  # fmt: skip
        gone = own[~np.isfinite(own["mean"])]
        if len(gone) and np.isfinite(top):
            data.append(
                {"type": "scatter", "mode": "markers", "x": gone["lr"].tolist(),
                 "y": [top] * len(gone), "legendgroup": arm, "showlegend": False,
                 "marker": {"symbol": "x", "size": 10, "color": colours[arm]},
                 "hovertemplate": "lr %{x:g}: every seed diverged", "name": arm}
            )  # fmt: skip
    layout = {
        "height": 380,
        "margin": _MARGIN,
        "xaxis": {"title": {"text": "learning rate"}, "type": "log"},
        "yaxis": {"title": {"text": m.j.rule.metric}, "automargin": True, "zeroline": False},
        "legend": LEGEND,
    }
    return {"data": data, "layout": layout}


def pareto(table: pd.DataFrame, m: Material) -> dict[str, Any]:
    """Final value over the first cost; the page's menu changes to the others."""
    kinds = [c for c in COSTS if (table["cost"] == c).any()]
    arms = list(dict.fromkeys(table["arm"]))
    colours = arm_colours(arms, m.j.baseline)
    data: list[dict[str, Any]] = []
    for i, kind in enumerate(kinds):
        own = table[table["cost"] == kind]
        front = own[own["front"]].sort_values("amount")
        names, sides = place_labels(own["amount"].tolist(), own["mean"].tolist(), own["arm"])
        data += [
            {"type": "scatter", "mode": "lines", "x": front["amount"].tolist(),
             "y": front["mean"].tolist(), "line": {"dash": "dot", "color": "#8a8f98", "width": 1},
             "hoverinfo": "skip", "showlegend": False, "visible": i == 0},
            {"type": "scatter", "mode": "markers+text" if len(own) <= _MOST else "markers",
             "x": own["amount"].tolist(), "y": own["mean"].tolist(), "text": names,
             "textposition": sides, "customdata": own["arm"].tolist(), "cliponaxis": False,
             "showlegend": False,
             "marker": {"size": 11, "color": [colours[a] for a in own["arm"]],
                        "symbol": ["circle" if f else "circle-open" for f in own["front"]]},
             "hovertemplate": "%{customdata}: %{y:.4f} at %{x:.4s}<extra></extra>",
             "visible": i == 0},
        ]  # fmt: skip
    menu = [
        {"label": f"over {COSTS[kind]}", "method": "update",
         "args": [{"visible": [k // 2 == i for k in range(2 * len(kinds))]},
                  {"xaxis.title.text": _axis(kind), **_range(table, kind, "xaxis.")}]}
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    layout: dict[str, Any] = {
        "height": 400,
        "margin": {**_MARGIN, "t": 50 if len(kinds) > 1 else 20},
        "xaxis": {
            "title": {"text": _axis(kinds[0])},
            "zeroline": False,
            "automargin": True,
            "exponentformat": "SI",
            "nticks": 5,
            **_range(table, kinds[0]),
        },
        "yaxis": {"title": {"text": m.j.rule.metric}, "automargin": True, "zeroline": False},
    }
    if len(kinds) > 1:
        layout["updatemenus"] = [
            {"buttons": menu, "type": "buttons", "direction": "right", "x": 0, "xanchor": "left",
             "y": 1.0, "yanchor": "bottom", "pad": {"b": 6}}
        ]  # fmt: skip
    return {"data": data, "layout": layout}


def _range(table: pd.DataFrame, kind: str, prefix: str = "") -> dict[str, Any]:
    """Where all arms cost the same, an axis of its own choice would show the ninth digit."""
    amount = table.loc[table["cost"] == kind, "amount"].to_numpy(float)
    low, high = float(amount.min()), float(amount.max())
    if high - low > 1e-3 * abs(high):
        return {f"{prefix}autorange": True}
    return {f"{prefix}autorange": False, f"{prefix}range": [0.95 * low, 1.05 * high]}


def _axis(kind: str) -> str:
    return {"flops": "FLOPs of a trial", "seconds": "seconds of a trial"}.get(kind, "peak memory")


def scaling(table: pd.DataFrame, m: Material) -> dict[str, Any]:
    """What was run, and the fitted curves up to where the gap is read."""
    points, over = sized(m)
    variants = table["variant"].tolist()
    colours = arm_colours(variants, variants[0])
    far = float(table["far"].iloc[0])
    x = np.geomspace(max(float(points["x"].min()), 1.0), far, 60)
    data: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        y = row["floor"] + row["amplitude"] * (x / row["scale"]) ** -row["exponent"]
        data.append(
            {"type": "scatter", "mode": "lines", "x": [float(f"{v:.4g}") for v in x],
             "y": [float(f"{v:.6g}") for v in y], "name": row["variant"],
             "line": {"color": colours[row["variant"]], "width": 2},
             "hovertemplate": "%{x:.3s}: %{y:.4f}"}
        )  # fmt: skip
    for variant in variants:
        own = points[points["variant"] == variant]
        data.append(
            {"type": "scatter", "mode": "markers", "x": own["x"].tolist(),
             "y": own["value"].tolist(), "showlegend": False, "name": variant,
             "marker": {"color": colours[variant], "size": 7}, "hovertemplate": "%{y:.4f}"}
        )  # fmt: skip
    layout = {
        "height": 400,
        "margin": _MARGIN,
        "xaxis": {"title": {"text": over}, "type": "log"},
        "yaxis": {"title": {"text": m.j.rule.metric}, "automargin": True, "zeroline": False},
        "legend": LEGEND,
    }
    return {"data": data, "layout": layout}
