"""The report as ONE page: no network, readable on a phone, light and dark, and in ten years."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import pandas as pd

from ablate.analysis.cells import TEXT, cells
from ablate.analysis.display import decimals, display, explain, headline, level, short, si
from ablate.analysis.figures import curve_figure, spike_marks
from ablate.analysis.forest import effects_figure
from ablate.analysis.html import document, listing, noted, titled, verdict
from ablate.analysis.judgement import Judgement
from ablate.analysis.markdown import changes, commands, environment, trials_table, verdict_columns
from ablate.analysis.material import Material
from ablate.analysis.registry import Section

__all__ = ["curve_panel", "page", "verdict_table"]

_WIDE = {"seeds", "mean", "p", "lr", "reference", "baseline_difference", "baseline_interval"}
"""Columns of the verdict table that a phone leaves out."""
_LEFT = {"arm", "reference", "verdict"}
_FOLDED_FROM, _FOLDED_BELOW = 40, 10
"""Rows of a table by itself, and of one below a figure that shows the same."""


def page(m: Material, made: Sequence[tuple[Section, pd.DataFrame]]) -> str:
    """The whole of index.html.

    Args:
        m: the judgement and its curves; the first metric is shown first.
        made: the other tables, as `sections` gives them.
    """
    j, curves = m.j, m.curves
    specs: dict[str, Any] = {}
    if len(j.table) > 1:
        specs["effects"] = effects_figure(j)
    marks = spike_marks(m)
    for i, (metric, curve) in enumerate(curves.items()):
        figure = curve_figure(j, curve, metric, marks)
        specs[f"curve{i}"] = figure | {"curve": metric, "baseline": j.baseline}
    tables = [_part(section, frame, m, specs) for section, frame in made]
    body = "\n".join(
        part
        for part in (
            _head(j),
            _verdicts(j),
            noted("Effects", _EFFECTS, '<div class="figure" id="effects"></div>')
            if "effects" in specs
            else "",
            curve_panel(curves, marks=len(marks) > 0),
            *tables,
            _arms(j),
            _plan(j),
            _trials(j),
            listing("Environment", environment(j)),
            titled("Reproduce", f"<pre>{escape(chr(10).join(commands(j)))}</pre>"),
        )
        if part
    )
    return document(f"{j.study}: ablation report", body, specs)


_EFFECTS = (
    "Point: estimate. Line: simultaneous interval. Thick: interval of the equivalence test. Ticks: "
    "seeds. Grey: smaller than what matters."
)


_CURVES = "Lines: mean over seeds. Bands: lowest to highest. Click an arm in the legend to hide it."


def _head(j: Judgement) -> str:
    question = j.manifest.get("question")
    warnings = [
        f'<p class="warning"><strong>Exploratory</strong>: {escape(reason)}.</p>'
        for reason in j.exploratory
    ]
    return "\n".join(
        [
            f"<h1>{escape(j.study)}</h1>",
            f'<p class="question">{escape(str(question))}</p>' if question else "",
            *warnings,
            f'<p class="headline">{escape(headline(j))}</p>',
        ]
    )


def verdict_table(j: Judgement) -> str:
    """The verdicts of a study, with their notes below the rows."""
    columns = verdict_columns(j)
    head = "".join(f"<th{_class(c)}>{escape(title)}</th>" for c, title in columns.items())
    rows = []
    for row in display(j).to_dict("records"):
        cells = "".join(
            f"<td>{verdict(row['verdict'])}</td>"
            if c == "verdict"
            else f"<td>{_named(row, j)}</td>"
            if c == "arm"
            else f"<td{_class(c)}>{escape(str(row[c]))}</td>"
            for c in columns
        )
        rows.append(f"<tr>{cells}</tr>")
        if row["note"]:
            rows.append(
                f'<tr class="note"><td colspan="{len(columns)}">{escape(row["note"])}</td></tr>'
            )
    return (
        f'<table class="full"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _named(row: dict[str, str], j: Judgement) -> str:
    """The arm; on a phone, which has no column for it, with a reference that cannot be guessed."""
    arm = escape(row["arm"])
    if not row["reference"] or not j.ladder or j.rungs:
        return arm
    return f'{arm}<div class="narrow soft">against {escape(row["reference"])}</div>'


def _verdicts(j: Judgement) -> str:
    notes = "".join(f'<p class="soft">{escape(n)}</p>' for n in (explain(j), *j.notes))
    table = f'<div class="scroll verdicts" id="verdicts">{verdict_table(j)}</div>\n{notes}'
    return titled("Verdicts", table)


def _part(section: Section, frame: pd.DataFrame, m: Material, specs: dict[str, Any]) -> str:
    """A table with its plots; long ones are folded."""
    figures = []
    for plot in section.plots:
        spec = plot(frame, m)
        if spec is not None:
            id = f"{section.name}-{plot.__name__}"
            specs[id] = spec
            figures.append(f'<div class="figure" id="{id}"></div>{_key(spec)}')
    text = cells(frame, section.columns, decimals(m.j))
    head = "".join(f"<th{_number(section, c)}>{escape(section.columns[c][0])}</th>" for c in text)
    rows = "".join(
        "<tr>" + "".join(f"<td{_number(section, c)}>{escape(row[c])}</td>" for c in text) + "</tr>"
        for row in text.to_dict("records")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    table = f'<div class="scroll">{table}</div>'
    if len(text) > (_FOLDED_FROM if not figures else _FOLDED_BELOW):
        table = f"<details><summary>{len(text)} rows</summary>{table}</details>"
    body = f'<p class="soft">{escape(section.noted(text, level(m.j)))}</p>{"".join(figures)}{table}'
    return f'<section id="{section.name}">{titled(section.title, body)}</section>'


def _key(spec: dict[str, Any]) -> str:
    """Whose the points of a figure are, where their names are not written beside them: on a phone,
    or where there are many.
    """
    points = next((t for t in spec["data"] if "customdata" in t and "text" in t), None)
    if points is None:
        return ""
    narrow = " narrow" if "text" in points["mode"] else ""
    named = "".join(
        f'<span><i style="background:{colour}"></i>{escape(str(name))}</span>'
        for name, colour in zip(points["customdata"], points["marker"]["color"], strict=True)
    )
    return f'<div class="key soft{narrow}">{named}</div>'


def _number(section: Section, column: str) -> str:
    return "" if section.columns[column][1] in TEXT else ' class="number"'


def curve_panel(curves: Iterable[str], *, marks: bool, note: str = _CURVES) -> str:
    """The figures `curve0`, `curve1`, ... of these metrics, and what can be toggled; the first is
    shown first.
    """
    metrics = list(curves)
    if not metrics:
        return ""
    options = "".join(
        f'<option value="curve{i}">{escape(m)}</option>' for i, m in enumerate(metrics)
    )
    controls = (
        f'<div class="controls"><label>Metric <select id="metric">{options}</select></label>'
        '<label><input type="checkbox" id="bands" checked> range over seeds</label>'
        '<label><input type="checkbox" id="minus"> minus the baseline</label>'
        '<label><input type="checkbox" id="log"> logarithmic</label>'
        + ('<label><input type="checkbox" id="spikes" checked> spikes</label>' if marks else "")
        + "</div>"
    )
    figures = "".join(f'<div class="figure" id="curve{i}"></div>' for i in range(len(metrics)))
    return noted("Curves", note, controls + figures)


def _arms(j: Judgement) -> str:
    arms = {a["name"]: a for a in j.manifest.get("arms", [])}
    rows = []
    for row in j.table.to_dict("records"):
        arm = arms.get(row["arm"], {})
        diff = (
            "<br>".join(
                f"<code>{escape(c)}</code>" for c in changes(arm, arms.get(row["reference"]))
            )
            or '<span class="soft">—</span>'
        )
        costs = (si(row.get(c)) for c in ("parameters", "flops_per_token", "tokens_per_second"))
        cells = "".join(
            f'<td class="number{wide}">{v}</td>'
            for v, wide in zip(costs, ("", *[" wide"] * 2), strict=True)
        )
        rows.append(f"<tr><td>{escape(row['arm'])}</td><td>{diff}</td>{cells}</tr>")
    titles = ("parameters", "FLOPs/token", "tokens/s")
    head = (
        f"<th>arm</th><th>changes to {'its reference' if j.ladder else 'the baseline'}</th>"
        + "".join(
            f'<th class="number{wide}">{t}</th>'
            for t, wide in zip(titles, ("", *[" wide"] * 2), strict=True)
        )
    )
    table = (
        f'<table class="full"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    return titled("Arms", f'<div class="scroll" id="arms">{table}</div>')


def _plan(j: Judgement) -> str:
    m, rule = j.manifest, j.rule
    budget = ", ".join(f"{si(v)} {k}" for k, v in (m.get("budget") or {}).items() if v)
    factors = "; ".join(
        f"{k}: {', '.join(map(str, v))}" for k, v in (m.get("factors") or {}).items()
    )
    baseline = next((a for a in m.get("arms", []) if a["name"] == j.baseline), {})
    words = [str(j.baseline), *map(str, baseline.get("overrides") or m.get("base") or [])]
    return listing(
        "Plan",
        {
            "design": m.get("design"),
            "baseline": " ".join(words),
            "factors": factors,
            "seeds": ", ".join(map(str, sorted(j.frames.trials["seed"].unique()))),
            "budget of a trial": budget,
            "matched": m.get("match"),
            "decision rule": f"{rule.metric}, smallest effect {rule.smallest_effect:g}, "
            f"alpha {short(rule.alpha)}, {rule.correction}",
            "trials": ", ".join(f"{n} {s}" for s, n in j.counts.items()),
        },
    )


def _trials(j: Judgement) -> str:
    table = trials_table(j)
    head = "".join(f"<th>{escape(c)}</th>" for c in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(v)}</td>" for v in row) + "</tr>" for row in table.to_numpy()
    )
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    inner = f'<div class="scroll">{inner}</div>'
    return titled("Trials", f"<details><summary>{len(table)} trials</summary>{inner}</details>")


def _class(column: str) -> str:
    names: Iterable[str] = [
        *(["number"] if column not in _LEFT else []),
        *(["wide"] if column in _WIDE else []),
    ]
    joined = " ".join(names)
    return f' class="{joined}"' if joined else ""
