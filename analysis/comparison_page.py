"""Several studies on ONE page, in the style of the page of each (`page`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.bands import by_arm
from ablate.analysis.comparison import Comparison, changes_of
from ablate.analysis.display import decimals, fixed, headline
from ablate.analysis.figures import BANDS_UP_TO, band, curve_layout, mean_line, visible_range
from ablate.analysis.forest import span
from ablate.analysis.html import document, noted, titled, verdict
from ablate.analysis.judgement import Judgement
from ablate.analysis.markdown import commands
from ablate.analysis.material import METRICS, Material
from ablate.analysis.page import curve_panel, verdict_table
from ablate.analysis.palette import LEGEND, VERDICT_COLOURS, arm_colours

__all__ = ["comparison_page"]

_DASHES = ("solid", "dash", "dot", "dashdot")
_CURVES = (
    "One colour a change, one kind of line a study; lines: mean over seeds, bands: lowest to "
    "highest. A difference is to the baseline of the same study."
)
_POOLED = (
    "Intervals of a study are simultaneous over its arms; a pooled one holds for its change alone, "
    "weights the studies by their seeds, and takes the effect to be one, which `agree` tests "
    "(Welch)."
)


def comparison_page(c: Comparison) -> str:
    """The whole of comparison.html."""
    specs: dict[str, Any] = {}
    if len(c.table):
        specs["effects"] = _forest(c)
    metrics = _curves(c, specs)
    values = "" if not c.refused else " The studies differ in what changes values: compare shapes."
    body = [
        f"<h1>{escape(c.names)}</h1>",
        *(
            f'<p class="warning"><strong>Exploratory</strong>: {escape(j.study)}: '
            f"{escape(reason)}.</p>"
            for j in c.judged
            for reason in j.exploratory
        ),
        f'<p class="headline">{escape(c.headline)}</p>',
        *(f'<p class="warning">{escape(note)}</p>' for note in c.notes),
        titled("Side by side", _side_by_side(c)) if len(c.table) else "",
        noted("Effects", _POOLED, '<div class="figure" id="effects"></div>')
        if "effects" in specs
        else "",
        titled("Arms by study", _matrix(c)),
        curve_panel(metrics, marks=False, note=_CURVES + values),
        titled("What differs between the studies", _differing(c)),
        *(_study(j) for j in c.judged),
        titled("Reproduce", f"<pre>{escape(chr(10).join(_commands(c.judged)))}</pre>"),
    ]
    return document(f"{c.names}: comparison", "\n".join(filter(None, body)), specs)


def _side_by_side(c: Comparison) -> str:
    """For each change a heading, a row a study, and what they come to together."""
    d = decimals(c.judged[0])
    rows = []
    for change, own in c.table.groupby("change", sort=False):
        rows.append(
            f'<tr class="group"><td colspan="6"><code>{escape(str(change))}</code></td></tr>'
        )
        rows += [
            _row(r["study"], r["arm"], r["difference"], (r["low"], r["high"]),
                 _seeds(r), verdict(r["verdict"]), d)
            for r in own.to_dict("records")
        ]  # fmt: skip
        first = own.iloc[0]
        if first["note"]:
            rows.append(f'<tr class="note"><td colspan="6">{escape(first["note"])}</td></tr>')
        else:
            p = first["p_agree"]
            agree = f"agree: p {'&lt; .001' if p < 0.001 else f'{p:.3f}'.removeprefix('0')}"
            ends = first["pooled_low"], first["pooled_high"]
            rows.append(_row("pooled", "", first["pooled"], ends, "", agree, d))
            if p < c.judged[0].rule.alpha:
                said = "the studies disagree by more than their noise: no one value says both"
                rows.append(f'<tr class="note"><td colspan="6">{said}</td></tr>')
    head = "".join(
        f"<th{kind}>{title}</th>"
        for title, kind in (
            ("study", ""),
            ("arm", ' class="wide"'),
            ("difference", ' class="number"'),
            ("interval", ' class="number"'),
            ("seeds", ' class="number wide"'),
            ("verdict", ""),
        )
    )
    return (
        '<div class="scroll verdicts" id="verdicts"><table class="full">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(
    study: str, arm: str, value: float, ends: tuple[float, float], seeds: str, last: str, d: int
) -> str:
    said = fixed(value, d, sign=True) if np.isfinite(value) else ""
    both = [fixed(e, d, sign=True) for e in ends if np.isfinite(e)]
    return (
        f'<tr><td>{escape(study)}</td><td class="wide">{escape(arm)}</td>'
        f'<td class="number">{said}</td><td class="number">{_interval(both)}</td>'
        f'<td class="number wide">{seeds}</td><td>{last}</td></tr>'
    )


def _interval(ends: Sequence[str]) -> str:
    return f"[{ends[0]}, {ends[1]}]" if len(ends) == 2 else ""


def _seeds(row: Mapping[str, Any]) -> str:
    """A diverged trial is told beside the survivors."""
    return f"{row['seeds']}" + (f" ({row['diverged']} div.)" if row["diverged"] else "")


def _matrix(c: Comparison) -> str:
    """Every change that any study made: its verdict and difference in each."""
    d = decimals(c.judged[0])
    cells: dict[str, dict[str, list[str]]] = {}
    for j in c.judged:
        said = changes_of(j)
        for row in j.table.to_dict("records"):
            change = "; ".join(sorted(said.get(row["arm"], ())))
            if change:
                value = row["difference"]
                number = f" {fixed(value, d, sign=True)}" if np.isfinite(value) else ""
                own = cells.setdefault(change, {}).setdefault(j.study, [])
                lost = f" ({_seeds(row)})" if row["diverged"] else ""
                own.append(f"{escape(row['arm'])}: {verdict(row['verdict'])}{number}{lost}")
    head = "".join(f"<th>{escape(j.study)}</th>" for j in c.judged)
    rows = "".join(
        f"<tr><td><code>{escape(change)}</code></td>"
        + "".join(f"<td>{'<br>'.join(own.get(j.study, ['—']))}</td>" for j in c.judged)
        + "</tr>"
        for change, own in cells.items()
    )
    return (
        f'<div class="scroll" id="arms"><table class="full"><thead><tr><th>change</th>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _differing(c: Comparison) -> str:
    if not len(c.differences):
        return '<p class="soft">Nothing that was recorded.</p>'
    names = [j.study for j in c.judged]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><td><code>{escape(row['field'])}</code></td><td>{escape(row['weight'])}</td>"
        + "".join(f"<td>{escape(row[name])}</td>" for name in names)
        + "</tr>"
        for row in c.differences.to_dict("records")
    )
    said = (
        "Refused: over a difference in it effects are not pooled, and final values of two studies "
        "are not to be compared. Flagged: it is the same within each study, and an effect should "
        "not depend on it."
    )
    return (
        f'<p class="soft">{said}</p><div class="scroll"><table class="differing"><thead><tr>'
        f"<th>field</th><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _study(j: Judgement) -> str:
    """The verdicts of one study, as on its own page."""
    question = j.manifest.get("question")
    asked = f'<p class="soft">{escape(str(question))}</p>' if question else ""
    notes = "".join(f'<p class="soft">{escape(n)}</p>' for n in j.notes)
    table = f'<div class="scroll verdicts">{verdict_table(j)}</div>'
    return titled(j.study, f"{asked}<p>{escape(headline(j))}</p>{table}{notes}")


def _commands(judged: Sequence[Judgement]) -> list[str]:
    each = [line for j in judged for line in commands(j)[:-1]]
    names = shlex.join(str(j.manifest.get("table", j.study)) for j in judged)
    return [*dict.fromkeys(each), f"ablate report {names}"]


def _forest(c: Comparison) -> dict[str, Any]:
    """A row a change and study, and below them what they come to together."""
    d = decimals(c.judged[0])
    data: list[dict[str, Any]] = []
    names: list[str] = []
    shown: set[str] = set()
    for _, own in c.table.groupby("change", sort=False):
        for row in own.to_dict("records"):
            name = f"{row['arm']} · {row['study']}"
            names.append(name)
            ends = (row["low"], row["high"])
            data += _marks(name, row["difference"], ends, row["verdict"], "circle", d, shown)
        first = own.iloc[0]
        if not first["note"]:
            name = f"{first['arm']} · pooled"
            names.append(name)
            ends = (first["pooled_low"], first["pooled_high"])
            data += _marks(name, first["pooled"], ends, "pooled", "diamond", d, shown)
    edge = max(j.rule.smallest_effect for j in c.judged)
    rule = c.judged[0].rule
    better = "← better" if rule.lower_is_better else "better →"
    layout = {
        "height": 110 + 30 * max(len(names), 2),
        "margin": {"l": 10, "r": 10, "t": 10, "b": 50},
        "xaxis": {"title": {"text": f"{rule.metric} minus reference   ({better})"},
                  "zeroline": True,
                  "range": span([c.table[k] for k in ("low", "high", "difference")])},
        "yaxis": {"type": "category", "categoryarray": names[::-1], "categoryorder": "array",
                  "automargin": True, "showgrid": False, "range": [-0.6, len(names) - 0.4]},
        "shapes": [{"type": "rect", "xref": "x", "yref": "paper", "x0": -edge, "x1": edge, "y0": 0,
                    "y1": 1, "fillcolor": "rgba(138,143,152,0.16)", "line": {"width": 0},
                    "layer": "below"}],
        "legend": LEGEND,
        "hovermode": "closest",
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _marks(
    name: str, value: float, ends: tuple[float, float], word: str, symbol: str, d: int,
    shown: set[str],
) -> list[dict[str, Any]]:  # fmt: skip
    colour = VERDICT_COLOURS.get(word, VERDICT_COLOURS["baseline"])
    marks: list[dict[str, Any]] = []
    if all(np.isfinite(ends)):
        marks.append({"type": "scatter", "x": list(ends), "y": [name, name], "mode": "lines",
                      "line": {"color": colour, "width": 3}, "hoverinfo": "skip",
                      "showlegend": False})  # fmt: skip
    marks.append(
        {"type": "scatter", "x": [value if np.isfinite(value) else None], "y": [name],
         "mode": "markers", "marker": {"color": colour, "size": 11, "symbol": symbol},
         "name": word, "legendgroup": word, "showlegend": word not in shown,
         "hovertemplate": f"%{{x:+.{d}f}}<extra>{escape(name)}</extra>"}
    )  # fmt: skip
    shown.add(word)
    return marks


def _curves(c: Comparison, specs: dict[str, Any]) -> list[str]:
    """Adds the figures `curve0`, ...; returns their metrics."""
    thinned = [Material(j).curves for j in c.judged]
    wanted = dict.fromkeys((*METRICS, *(j.rule.metric for j in c.judged)))
    metrics = [m for m in wanted if any(m in own for own in thinned)]
    kinds = {j.study: _kinds(j) for j in c.judged}
    every = list(dict.fromkeys(kind for own in kinds.values() for kind in own.values()))
    colours = arm_colours(every, "")
    for i, metric in enumerate(metrics):
        bands: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        frames = []
        for k, (j, own) in enumerate(zip(c.judged, thinned, strict=True)):
            if metric not in own:
                continue
            frames.append(own[metric])
            for arm, rows in by_arm(own[metric]).items():
                kind, name = kinds[j.study][arm], f"{arm} · {j.study}"
                bands.append(band(rows, colours[kind], name))
                lines.append(mean_line(rows, name, colours[kind], _DASHES[k % len(_DASHES)]))
        shown = visible_range(pd.concat(frames, ignore_index=True))
        data = [*(bands if len(lines) <= BANDS_UP_TO else []), *lines]
        specs[f"curve{i}"] = {
            "data": data,
            "layout": curve_layout(metric, shown, len(lines)),
            "curve": metric,
            "baseline": "the baseline of its study",
        }
    return metrics


def _kinds(j: Judgement) -> dict[str, str]:
    """What each arm changes, which gives it its colour; a baseline changes nothing."""
    said = changes_of(j)
    return {
        arm: "" if arm == j.baseline else "; ".join(sorted(said.get(arm, ()))) or arm
        for arm in j.table["arm"]
    }
