"""Interactive figures of the page: a judgement (and thinned curves) in, a plotly figure out.

Colours of text and grid are left to the page, which knows whether it is light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ablate.analysis.bands import bands
from ablate.analysis.display import decimals
from ablate.analysis.judgement import Judgement
from ablate.analysis.palette import VERDICT_COLOURS, arm_colours, arm_dashes, translucent

__all__ = ["curve_figure", "effects_figure", "seed_differences"]


def seed_differences(j: Judgement) -> pd.DataFrame:
    """One row an arm and seed that its reference has too: `arm, seed, difference`."""
    trials = j.frames.trials
    metric = j.rule.metric
    if metric not in trials:
        return pd.DataFrame(columns=["arm", "seed", "difference"])
    counted = trials[trials["id"].isin(j.chosen) & (trials["status"] == "done")]
    cell = counted.groupby(["arm", "seed"])[metric].mean()
    rows = []
    for arm, reference in j.table.loc[
        j.table["verdict"] != "baseline", ["arm", "reference"]
    ].to_numpy():
        if arm not in cell or reference not in cell:
            continue
        difference = (cell[arm] - cell[reference]).dropna()
        rows += [(arm, int(seed), float(d)) for seed, d in difference.items() if np.isfinite(d)]
    return pd.DataFrame(rows, columns=["arm", "seed", "difference"])


def effects_figure(j: Judgement) -> go.Figure:
    """A forest plot: the difference of each arm to its reference, its intervals, and each seed."""
    table = j.table[j.table["verdict"] != "baseline"]
    seeds = seed_differences(j)
    d = decimals(j)
    figure = go.Figure()
    if j.rule.smallest_effect:
        edge = j.rule.smallest_effect
        figure.add_vrect(
            x0=-edge, x1=edge, fillcolor="rgba(138,143,152,0.16)", line_width=0, layer="below"
        )
    level = f"{100 * (1 - j.rule.alpha):g} %"
    shown: set[str] = set()
    for row in table.to_dict("records"):
        colour = VERDICT_COLOURS[row["verdict"]]
        label = f"{row['arm']}"
        if np.isfinite(row["low"]):
            for low, high, width in (
                (row["low"], row["high"], 3),
                (row["equivalent_low"], row["equivalent_high"], 8),
            ):
                figure.add_trace(
                    go.Scatter(
                        x=[low, high],
                        y=[label, label],
                        mode="lines",
                        line={
                            "color": translucent(colour, 0.9 if width == 3 else 0.35),
                            "width": width,
                        },
                        hoverinfo="skip",
                        showlegend=False,
                    )
                )
        own = seeds[seeds["arm"] == row["arm"]]
        figure.add_trace(
            go.Scatter(
                x=own["difference"].tolist(),
                y=[label] * len(own),
                mode="markers",
                marker={
                    "color": colour,
                    "size": 9,
                    "symbol": "line-ns",
                    "line": {"color": colour, "width": 1.5},
                },
                text=[f"seed {s}" for s in own["seed"]],
                hovertemplate=f"%{{text}}: %{{x:+.{d}f}}<extra>{label}</extra>",
                showlegend=False,
            )
        )
        interval = (
            f"<br>{level} [{row['low']:+.{d}f}, {row['high']:+.{d}f}]"
            if np.isfinite(row["low"])
            else ""
        )
        figure.add_trace(
            go.Scatter(
                x=[row["difference"] if np.isfinite(row["difference"]) else None],
                y=[label],
                mode="markers",
                marker={"color": colour, "size": 11},
                name=row["verdict"],
                legendgroup=row["verdict"],
                showlegend=row["verdict"] not in shown,
                hovertemplate=f"<b>{label}</b>: %{{x:+.{d}f}}{interval}<br>{row['verdict']}"
                "<extra></extra>",
            )
        )
        shown.add(row["verdict"])
    against = "reference" if j.ladder else str(j.baseline)
    better = "← better" if j.rule.lower_is_better else "better →"
    figure.update_layout(
        template=go.layout.Template(),
        height=110 + 34 * max(len(table), 2),
        margin={"l": 10, "r": 10, "t": 10, "b": 50},
        xaxis={
            "title": {"text": f"{j.rule.metric} minus {against}   ({better})"},
            "zeroline": True,
            "range": _span([table["low"], table["high"], seeds["difference"], table["difference"]]),
        },
        yaxis={
            "type": "category",
            "categoryarray": table["arm"].tolist()[::-1],
            "categoryorder": "array",
            "automargin": True,
            "showgrid": False,
            "range": [-0.6, len(table) - 0.4],
        },
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    return figure


def curve_figure(j: Judgement, curve: pd.DataFrame, metric: str) -> go.Figure:
    """Mean over seeds of each arm, with the range as a band (traces whose `meta` is "band")."""
    arms = [a for a in j.table["arm"] if (curve["arm"] == a).any()]
    colours, dashes = arm_colours(arms, j.baseline), arm_dashes(arms, j.baseline)
    figure = go.Figure()
    for arm in arms:
        rows = curve[curve["arm"] == arm]
        if (rows["seeds"] > 1).any() or len(rows) > 1:
            x = [*rows["step"], *rows["step"][::-1]]
            y = _short([*rows["high"], *rows["low"][::-1]])
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=y,
                    fill="toself",
                    fillcolor=translucent(colours[arm], 0.16),
                    line={"width": 0},
                    mode="lines",
                    hoverinfo="skip",
                    legendgroup=arm,
                    showlegend=False,
                    meta="band",
                )
            )
    for arm in arms:
        rows = curve[curve["arm"] == arm]
        figure.add_trace(
            go.Scatter(
                x=rows["step"].tolist(),
                y=_short(rows["mean"]),
                mode="lines" if len(rows) > 1 else "markers",
                line={"color": colours[arm], "width": 2, "dash": dashes[arm]},
                name=arm,
                legendgroup=arm,
                meta="mean",
                hovertemplate="%{y:.4f}",
            )
        )
    figure.add_traces(_diverged(j, metric, colours))
    # The first steps lie far above the rest: the axis starts where the curves have come down.
    late = curve[curve["step"] > curve["step"].max() * 0.1]
    low, high = float(late["low"].min()), float(late["mean"].max())
    pad = 0.06 * (high - low or 1.0)
    figure.update_layout(
        template=go.layout.Template(),
        height=440,
        margin={"l": 10, "r": 10, "t": 10, "b": 45},
        xaxis={"title": {"text": "step"}, "zeroline": False},
        yaxis={
            "title": {"text": metric},
            "automargin": True,
            "zeroline": False,
            "range": [low - pad, high + pad],
        },
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        hovermode="x unified",
    )
    return figure


def _diverged(
    j: Judgement, metric: str, colours: dict[str, str], most: int = 40
) -> list[go.Scatter]:
    """Diverged trials, each a thin line of its own up to a cross: means are of the survivors."""
    trials = j.frames.trials
    gone = trials[(trials["status"] == "diverged") & trials["id"].isin(j.chosen)]
    traces = []
    for row in gone.head(most).to_dict("records"):
        curve = bands(j.frames.curves, metric, ids=[row["id"]], points=150)
        if not len(curve):
            continue
        colour = colours.get(row["arm"], "#d9534f")
        traces.append(
            go.Scatter(
                x=curve["step"].tolist(),
                y=_short(curve["mean"]),
                mode="lines+markers",
                line={"color": translucent(colour, 0.8), "width": 1, "dash": "dot"},
                marker={"symbol": "x", "size": [0] * (len(curve) - 1) + [9], "color": colour},
                name=f"{row['id']} diverged",
                legendgroup=row["arm"],
                showlegend=False,
                meta="diverged",
                hovertemplate="%{y:.4f}",
            )
        )
    return traces


def _short(values: Iterable[float]) -> list[float]:
    """Six digits: a plot shows no more, and the page stays small."""
    return [float(f"{v:.6g}") for v in values]


def _span(parts: Sequence[pd.Series]) -> list[float]:
    values = np.concatenate([p.to_numpy(dtype=float) for p in parts])
    values = values[np.isfinite(values)]
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    pad = 0.06 * (high - low or 1.0)
    return [low - pad, high + pad]
