"""Curves as interactive figures: a judgement and thinned curves in, a plotly figure out.

A figure is plotly's own JSON (`data` and `layout`), as `plotly.graph_objects.Figure` takes it.
Colours of text and grid are left to the page, which knows whether it is light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.bands import bands, by_arm
from ablate.analysis.judgement import Judgement
from ablate.analysis.material import Material
from ablate.analysis.palette import LEGEND, VERDICT_COLOURS, arm_colours, arm_dashes, translucent

__all__ = [
    "BANDS_UP_TO",
    "band",
    "curve_figure",
    "curve_layout",
    "mean_line",
    "spike_marks",
    "visible_range",
]

BANDS_UP_TO = 20
"""Arms; more bands than that hide each other and everything else."""


def spike_marks(m: Material, most: int = 400) -> pd.DataFrame:
    """`arm, id, step, kind, height, cause` of the alarms of the trials that count, the highest
    `most`.
    """
    arms = dict(zip(m.trials["id"], m.trials["arm"], strict=True))
    rows = [
        (arms[id], id, e.start if e.peak is None else e.peak, e.kind, e.height or 0.0,
         e.cause or "")
        for id, events in m.events.items()
        for e in events
        if e.is_alert and id in arms
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["arm", "id", "step", "kind", "height", "cause"])
    frame["height"] = frame["height"].astype(float)
    return frame.nlargest(most, "height").sort_values(["arm", "step"]).reset_index(drop=True)


def curve_figure(
    j: Judgement, curve: pd.DataFrame, metric: str, marks: pd.DataFrame | None = None
) -> dict[str, Any]:
    """Mean over seeds of each arm, with the range as a band (traces whose `meta` is "band"), and
    the spikes on the range's upper end (`meta` "spike").
    """
    own = by_arm(curve)
    arms = [a for a in j.table["arm"] if a in own]
    colours, dashes = arm_colours(arms, j.baseline), arm_dashes(arms, j.baseline)
    data = [band(own[a], colours[a], a) for a in arms if len(arms) <= BANDS_UP_TO]
    data += [mean_line(own[a], a, colours[a], dashes[a]) for a in arms]
    data += _diverged(j, metric, colours)
    if marks is not None and metric.startswith("train/"):
        data += _spikes(own, marks, colours)
    return {"data": data, "layout": curve_layout(metric, visible_range(curve), len(arms))}


def band(rows: Mapping[str, np.ndarray], colour: str, group: str) -> dict[str, Any]:
    """The range over seeds (`meta` is "band"); it comes and goes with its group."""
    steps = rows["step"].tolist()
    return {
        "type": "scatter",
        "x": [*steps, *steps[::-1]],
        "y": _short(np.concatenate([rows["high"], rows["low"][::-1]])),
        "fill": "toself",
        "fillcolor": translucent(colour, 0.16),
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "legendgroup": group,
        "showlegend": False,
        "meta": "band",
    }


def mean_line(rows: Mapping[str, np.ndarray], name: str, colour: str, dash: str) -> dict[str, Any]:
    """The mean over seeds (`meta` is "mean"), with its difference to the baseline beside it."""
    return {
        "type": "scatter",
        "x": rows["step"].tolist(),
        "y": _short(rows["mean"]),
        "mode": "lines" if len(rows["step"]) > 1 else "markers",
        "line": {"color": colour, "width": 2, "dash": dash},
        "name": name,
        "legendgroup": name,
        "meta": "mean",
        "customdata": [d if d == d else None for d in _short(rows["difference"])],
        "hovertemplate": "%{y:.4f}",
    }


def curve_layout(metric: str, shown: list[float], lines: int) -> dict[str, Any]:
    """Axes and legend of curves over the steps; `shown` is the range of the metric."""
    return {
        "height": 440,
        "margin": {"l": 10, "r": 10, "t": 10, "b": 45},
        "xaxis": {"title": {"text": "step"}, "zeroline": False},
        "yaxis": {
            "title": {"text": metric},
            "automargin": True,
            "zeroline": False,
            "range": shown,
        },
        "legend": LEGEND,
        "hovermode": "x unified" if lines <= BANDS_UP_TO else "closest",
    }


def _spikes(
    curves: dict[str, dict[str, np.ndarray]], marks: pd.DataFrame, colours: dict[str, str]
) -> list[dict[str, Any]]:
    """A mark a spike, at the highest value of its bucket."""
    traces = []
    grouped: dict[str, list[dict[str, Any]]] = {}
    for mark in marks.to_dict("records"):
        grouped.setdefault(mark["arm"], []).append(mark)
    for arm, own in grouped.items():
        rows = curves.get(arm)
        if rows is None:
            continue
        steps = [r["step"] for r in own]
        at = np.minimum(np.searchsorted(rows["step"], steps), len(rows["step"]) - 1)
        text = [
            f"{r['kind']}, {r['height']:.2g} nats{', by ' + r['cause'] if r['cause'] else ''}, "
            f"{r['id']}"
            for r in own
        ]
        traces.append(
            {
                "type": "scatter",
                "x": steps,
                "y": _short(rows["high"][at]),
                "mode": "markers",
                "marker": {
                    "symbol": "triangle-down",
                    "size": 9,
                    "color": colours[arm],
                    "line": {"width": 1, "color": "#8a8f98"},
                },
                "name": f"{arm}: spikes",
                "legendgroup": arm,
                "showlegend": False,
                "meta": "spike",
                "text": text,
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return traces


def visible_range(curve: pd.DataFrame) -> list[float]:
    """The first steps lie far above the rest: the axis starts where the curves have come down."""
    late = curve[curve["step"] > curve["step"].max() * 0.1]
    low, high = float(late["low"].min()), float(late["mean"].max())
    pad = 0.06 * (high - low or 1.0)
    return [low - pad, high + pad]


def _diverged(
    j: Judgement, metric: str, colours: dict[str, str], most: int = 40
) -> list[dict[str, Any]]:
    """Diverged trials, each a thin line up to a cross: the means are those of the survivors."""
    trials = j.frames.trials
    gone = trials[(trials["status"] == "diverged") & trials["id"].isin(j.chosen)]
    traces = []
    for row in gone.head(most).to_dict("records"):
        curve = bands(j.frames.curves, metric, ids=[row["id"]], points=150)
        if not len(curve):
            continue
        colour = colours.get(row["arm"], VERDICT_COLOURS["worse"])
        traces.append(
            {
                "type": "scatter",
                "x": curve["step"].tolist(),
                "y": _short(curve["mean"]),
                "mode": "lines+markers",
                "line": {"color": translucent(colour, 0.8), "width": 1, "dash": "dot"},
                "marker": {"symbol": "x", "size": [0] * (len(curve) - 1) + [9], "color": colour},
                "name": f"{row['id']} diverged",
                "legendgroup": row["arm"],
                "showlegend": False,
                "meta": "diverged",
                "hovertemplate": "%{y:.4f}",
            }
        )
    return traces


def _short(values: Iterable[float]) -> list[float]:
    """Six digits: a plot shows no more, and the page stays small."""
    x = np.asarray(values if isinstance(values, np.ndarray | pd.Series) else list(values), float)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = 5 - np.floor(np.log10(np.abs(x)))
        # By whole numbers over a power of ten, which is the shortest way to write the result.
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        rounded = np.round(x * up / down) * down / up
    ordinary = np.isfinite(rounded) & (np.abs(places) <= 20)
    return np.where(ordinary, rounded, x).tolist()
