"""The same figures as files for documents: SVG, PNG and PDF by matplotlib, without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ablate.analysis.bands import by_arm
from ablate.analysis.figures import visible_range
from ablate.analysis.forest import seed_differences
from ablate.analysis.judgement import Judgement
from ablate.analysis.palette import VERDICT_COLOURS, arm_colours, arm_dashes

__all__ = ["curves_picture", "effects_picture", "save"]

_STYLE = {
    "svg.hashsalt": "ablate",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in an arm's name is a dollar
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
}
_METADATA = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}


_NAMED = 60
"""Arms; of more each is a hair's breadth, without a name where there is no room."""


def save(figure: Figure, path: Path) -> None:
    """Writes path.svg, path.png and path.pdf, the same bytes at every run."""
    with mpl.rc_context(_STYLE):
        # Measured once: "tight" would draw the figure twice for each format.
        box = figure.get_tightbbox().padded(0.08)
        for suffix, metadata in _METADATA.items():
            target = path.with_suffix(f".{suffix}")
            figure.savefig(target, metadata=metadata, dpi=160, bbox_inches=box)


def effects_picture(j: Judgement) -> Figure:
    """The forest plot."""
    table = j.table[j.table["verdict"] != "baseline"].reset_index(drop=True)
    seeds = seed_differences(j)
    with mpl.rc_context(_STYLE):
        row = 0.34 if len(table) <= _NAMED else 0.09
        figure = Figure(figsize=(6.4, 0.9 + row * max(len(table), 2)))
        axes = figure.subplots()
        if j.rule.smallest_effect:
            axes.axvspan(
                -j.rule.smallest_effect, j.rule.smallest_effect, color="#8a8f98", alpha=0.15, lw=0
            )
        axes.axvline(0, color="#444", lw=0.8)
        colour = [VERDICT_COLOURS[v] for v in table["verdict"]]
        y = np.arange(len(table))
        known = np.isfinite(table["low"].to_numpy(float))
        shade = [c for c, k in zip(colour, known, strict=True) if k]
        own = table[known]
        axes.hlines(y[known], own["low"], own["high"], colors=shade, lw=1.6)
        axes.hlines(y[known], own["equivalent_low"], own["equivalent_high"], colors=shade, lw=5,
                    alpha=0.35)  # fmt: skip
        place = dict(zip(table["arm"], y, strict=True))
        at = seeds["arm"].map(place).to_numpy()
        axes.scatter(seeds["difference"], at, marker="|", s=36, alpha=0.7, linewidths=1,
                     c=[colour[k] for k in at])  # fmt: skip
        axes.scatter(table["difference"], y, c=colour, s=30, zorder=3)
        for k, verdict in enumerate(table["verdict"] if len(table) <= _NAMED else ()):
            axes.annotate(
                verdict,
                (1.01, k),
                xycoords=("axes fraction", "data"),
                va="center",
                color=colour[k],
                fontsize=8,
            )
        small = {} if len(table) <= _NAMED else {"fontsize": 5}
        axes.set_yticks(range(len(table)), table["arm"].tolist(), **small)
        axes.set_ylim(len(table) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        against = "reference" if j.ladder else str(j.baseline)
        axes.set_xlabel(f"{j.rule.metric} minus {against}")
    return figure


def curves_picture(j: Judgement, curves: Mapping[str, pd.DataFrame]) -> Figure:
    """One panel a metric: mean over seeds, range as a band."""
    curves = dict(list(curves.items())[:2])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.2 * max(len(curves), 1)))
        panels = figure.subplots(max(len(curves), 1), squeeze=False)[:, 0]
        arms = j.table["arm"].tolist()
        colours, dashes = arm_colours(arms, j.baseline), arm_dashes(arms, j.baseline)
        for axes, (metric, curve) in zip(panels, curves.items(), strict=False):
            own = by_arm(curve)
            shown = [a for a in arms if a in own]
            if len(shown) > _NAMED:
                lines = [np.column_stack([own[a]["step"], own[a]["mean"]]) for a in shown]
                axes.add_collection(
                    LineCollection(lines, colors=[colours[a] for a in shown], lw=0.6, alpha=0.6)
                )
                axes.set_xlim(0, curve["step"].max())
                shown = []
            for arm in shown:
                rows = own[arm]
                if len(arms) <= 20:  # more bands than that hide each other
                    low, high = rows["low"], rows["high"]
                    axes.fill_between(rows["step"], low, high, color=colours[arm], alpha=0.12, lw=0)
                style = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}[dashes[arm]]
                axes.plot(
                    rows["step"], rows["mean"], color=colours[arm], ls=style, lw=1.3, label=arm
                )
            axes.set_ylim(*visible_range(curve))
            axes.set_ylabel(metric)
        panels[-1].set_xlabel("step")
        if curves and len(arms) <= _NAMED:
            panels[0].legend(fontsize=7, ncols=2, frameon=False)
    return figure
