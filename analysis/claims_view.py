"""Claims in a terminal: a paragraph each, for a claim is a sentence and no cell of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from ablate.analysis.claim_rule import VERDICTS
from ablate.analysis.display import count

__all__ = ["claims_view", "headline", "text_rows"]

STYLES = dict(zip(VERDICTS, ("bold green", "cyan", "bold red", "yellow", "magenta"), strict=True))


def claims_view(table: pd.DataFrame) -> RenderableType:
    """Of `judge_claims`, or the whole ledger, which says the study and its cost too."""
    parts: list[RenderableType] = []
    for row in text_rows(table):
        head = Text.assemble(
            (row["verdict"], STYLES[row["verdict"]]), "  ", (row["statement"], "bold")
        )
        parts += [head, *(Text("  " + line) for line in _lines(row)), Text("")]
    parts.append(Text(headline(table), style="bold"))
    return Group(*parts)


def headline(table: pd.DataFrame) -> str:
    """The ledger in one sentence."""
    said = [f"{n} {v}" for v in VERDICTS if (n := int((table["verdict"] == v).sum()))]
    return f"{count(len(table), 'claim')}: {', '.join(said)}."


def _lines(row: Mapping[str, Any]) -> list[str]:
    what = f"{row['metric']}, {row['of']} against {row['against']}"
    lines = [f"{what}: claimed {row['claimed']}, measured {row['measured'] or 'nothing'}"]
    if row["nearest"]:
        found = f": {row['nearest_verdict']}" if row["nearest_verdict"] else ""
        lines.append(f"nearest that can be tested: {row['nearest']}{found}")
    if row["note"]:
        lines.append(row["note"])
    if row.get("exploratory"):
        lines.append(f"exploratory: {row['exploratory']}")
    cost = ""
    if "study" in row:
        trials = count(int(row["trials"]), "trial")
        cost = f"{row['study']}: {trials}, {row['seconds']:,.0f} s of training; "
    return [*lines, f"{cost}source: {row['source']}"]


def text_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Text is text: what is missing is empty."""
    return [
        {str(k): "" if v is None or v is pd.NA or v != v else v for k, v in row.items()}
        for row in table.to_dict("records")
    ]
