"""The tables for a paper (booktabs)."""

from __future__ import annotations

import pandas as pd

from ablate.analysis.cells import TEXT
from ablate.analysis.display import display, explain
from ablate.analysis.judgement import Judgement
from ablate.analysis.markdown import verdict_columns
from ablate.analysis.registry import Section

__all__ = ["latex", "latex_table"]

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
}


def latex(j: Judgement) -> str:
    """The verdicts as a `table` environment; it needs the package booktabs."""
    columns = verdict_columns(j)
    left = {"arm", "reference", "verdict"}
    return _environment(display(j)[list(columns)], columns, left, _caption(j))


def latex_table(section: Section, text: pd.DataFrame, percent: str) -> str:
    """One of the other tables, from its cells.

    Args:
        section: what it is.
        text: its cells.
        percent: the level of the study's intervals.
    """
    titles = {c: section.columns[c][0] for c in text}
    left = {c for c in text if section.columns[c][1] in TEXT}
    return _environment(
        text, titles, left, _escape(f"{section.title}. {section.noted(text, percent)}")
    )


def _environment(rows: pd.DataFrame, columns: dict[str, str], left: set[str], caption: str) -> str:
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{''.join('l' if c in left else 'r' for c in columns)}}}",
        r"\toprule",
        " & ".join(map(_escape, columns.values())) + r" \\",
        r"\midrule",
        *(
            " & ".join(_cell(c in left, v) for c, v in row.items()) + r" \\"
            for row in rows.to_dict("records")
        ),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{caption}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _caption(j: Judgement) -> str:
    exploratory = "".join(f"Exploratory: {reason}. " for reason in j.exploratory)
    return _escape(exploratory + explain(j))


def _cell(left: bool, value: str) -> str:
    numeric = not left and value[:1] in tuple("+-[") and "%" not in value
    return f"${value}$" if numeric else _escape(value)


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)
