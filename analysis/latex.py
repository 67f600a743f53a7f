"""The verdict table for a paper (booktabs)."""

from __future__ import annotations

from ablate.analysis.display import display, explain
from ablate.analysis.judgement import Judgement
from ablate.analysis.markdown import verdict_columns

__all__ = ["latex"]

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
}


def latex(j: Judgement) -> str:
    """A `table` environment; it needs the package booktabs."""
    columns = verdict_columns(j)
    rows = display(j)[list(columns)]
    left = {"arm", "reference", "verdict"}
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{''.join('l' if c in left else 'r' for c in columns)}}}",
        r"\toprule",
        " & ".join(map(_escape, columns.values())) + r" \\",
        r"\midrule",
        *(
            " & ".join(_cell(c, v) for c, v in row.items()) + r" \\"
            for row in rows.to_dict("records")
        ),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{_caption(j)}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _caption(j: Judgement) -> str:
    exploratory = "".join(f"Exploratory: {reason}. " for reason in j.exploratory)
    return _escape(exploratory + explain(j))


def _cell(column: str, value: str) -> str:
    numeric = column not in ("arm", "reference", "verdict") and value[:1] in tuple("+-[")
    return f"${value}$" if numeric else _escape(value)


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in text)
