"""Several studies, each judged, side by side: `ablate report A B`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from ablate.analysis.cells import TEXT, cells
from ablate.analysis.differences import differences, same_trials
from ablate.analysis.display import count, decimals
from ablate.analysis.fitting import left_out
from ablate.analysis.judgement import Judgement, plain
from ablate.analysis.markdown import changes, markdown_table
from ablate.analysis.tables.studies import compare_studies
from ablate.rundir import write_atomic

__all__ = ["COLUMNS", "Comparison", "changes_of", "compare", "show_comparison", "write_comparison"]

COLUMNS = {
    "study": ("study", "s"),
    "arm": ("arm", "s"),
    "difference": ("difference", "+m"),
    "low": ("low", "+m"),
    "high": ("high", "+m"),
    "seeds": ("seeds", "d"),
    "diverged": ("diverged", "d"),
    "verdict": ("verdict", "s"),
    "pooled": ("pooled", "+m"),
    "pooled_low": ("pooled low", "+m"),
    "pooled_high": ("pooled high", "+m"),
    "p_agree": ("agree p", "p"),
    "change": ("change", "s"),
    "note": ("", "s"),
}
ALWAYS = ("study", "arm", "difference", "verdict")
WISHED = (
    ("low", "high"), ("pooled",), ("p_agree",), ("seeds",), ("diverged",),
    ("pooled_low", "pooled_high"), ("change",),
)  # fmt: skip
"""In a terminal, where there is room; the ends of an interval together."""
_FIELDS = 8


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Studies beside each other."""

    judged: Sequence[Judgement]
    table: pd.DataFrame
    """Of `compare_studies`: a row a change and study."""
    differences: pd.DataFrame
    """Of `differences`: a row a field in which the studies are not alike."""

    @property
    def refused(self) -> list[str]:
        """Fields because of which no effects are pooled."""
        own = self.differences
        return own.loc[own["weight"] == "refused", "field"].tolist()

    @property
    def names(self) -> str:
        return " and ".join(j.study for j in self.judged)

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        made = self.table.drop_duplicates("change")
        if not len(made):
            return "No change was made by two of the studies: there is nothing to compare."
        pooled = made[made["pooled"].notna()]
        apart = int((pooled["p_agree"] < self.judged[0].rule.alpha).sum())
        several = self.table.groupby("change")["verdict"].nunique()
        said = f"{count(len(made), 'change')} made by several studies: "
        said += (
            f"{int((several == 1).sum())} with one verdict, {int((several > 1).sum())} with more"
        )
        if len(pooled):
            return f"{said}; {len(pooled)} pooled, of which {apart} disagree beyond the noise."
        return f"{said}; none pooled."

    @property
    def notes(self) -> list[str]:
        """What stands in the way of reading the studies as one result."""
        notes = []
        for weight, said in (
            ("refused", "Not pooled and not to be compared in their values: the studies differ in"),
            ("flagged", "Compared all the same: the studies differ in"),
        ):
            own = self.differences
            fields = own.loc[own["weight"] == weight, "field"].tolist()
            fields = ["what is exploratory" if f == "exploratory" else f for f in fields]
            if fields:
                more = f" and {len(fields) - _FIELDS} more" if len(fields) > _FIELDS else ""
                notes.append(f"{said} {', '.join(fields[:_FIELDS])}{more}.")
        reasons = self.table.loc[self.table["note"] != "", ["change", "note"]].drop_duplicates()
        if not self.refused:
            notes += [f"{r['change']}: {r['note']}." for r in reasons.to_dict("records")]
        return notes

    def to_json(self) -> list[dict[str, Any]]:
        """Rows as plain values."""
        return [{str(k): plain(v) for k, v in row.items()} for row in self.table.to_dict("records")]


def compare(judged: Sequence[Judgement]) -> Comparison:
    """Puts studies beside each other; effects are pooled where nothing forbids it."""
    found = differences(judged)
    refused = found.loc[found["weight"] == "refused", "field"].tolist()
    metrics = {j.rule.metric for j in judged}

    def refuse(arms: Mapping[str, str]) -> str:
        if refused:
            return f"the studies differ in {refused[0]}"
        return same_trials(judged, arms)

    table = compare_studies(
        {j.study: j.table for j in judged} if len(metrics) == 1 else {},
        {j.study: changes_of(j) for j in judged},
        {j.study: j.fit.df for j in judged},
        alpha=judged[0].rule.alpha,
        refuse=refuse,
    )
    return Comparison(judged=judged, table=table, differences=found)


def changes_of(j: Judgement) -> dict[str, list[str]]:
    """What each arm changes against its reference; of a table from elsewhere its name is all that
    is known.
    """
    arms = {a["name"]: a for a in j.manifest.get("arms", [])}
    recorded = any("diff" in a for a in arms.values())
    return {
        row["arm"]: changes(arms.get(row["arm"], {}), arms.get(row["reference"]))
        if recorded
        else [f"arm {row['arm']}"]
        for row in j.table.to_dict("records")
        if isinstance(row["reference"], str)
    }


def show_comparison(c: Comparison, console: Console) -> None:
    """Prints it."""
    console.print("[bold]The studies side by side[/bold]")
    if len(c.table):
        text = cells(c.table.drop(columns="note"), COLUMNS, decimals(c.judged[0]))
        kept = _fitting(text, console.width)
        gone = left_out([COLUMNS[c][0] for c in text if c not in kept], console.width)
        text = text[kept]
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column in text:
            title, form = COLUMNS[column]
            shown.add_column(title, justify="left" if form in TEXT else "right", overflow="fold")
        for row in text.to_dict("records"):
            shown.add_row(*row.values())
        console.print(shown)
        if gone:
            console.print(gone, style="dim", markup=False)
    console.print(c.headline, markup=False)
    for note in c.notes:
        console.print(note, style="yellow", markup=False)


def _fitting(text: pd.DataFrame, width: int) -> list[str]:
    """Columns for a terminal of that width: what must be there, and of the rest what fits, the most
    telling first. The page has all of them.
    """
    room = {c: max(len(COLUMNS[c][0]), *text[c].str.len()) + 2 for c in text}
    kept = [c for c in ALWAYS if c in text]
    left = width - sum(room[c] for c in kept)
    for columns in WISHED:
        there = [c for c in columns if c in text]
        needs = sum(room[c] for c in there)
        if needs <= left:
            left -= needs
            kept += there
    return [c for c in text if c in kept]


def write_comparison(c: Comparison, folder: Path) -> Path:
    """Writes comparison.csv, .parquet, .md and .html; returns the last."""
    from ablate.analysis.comparison_page import comparison_page

    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "comparison.csv", c.table.to_csv(index=False))
    c.table.to_parquet(folder / "comparison.parquet", index=False)
    text = cells(c.table, COLUMNS, decimals(c.judged[0]))
    titles = {k: title for k, (title, _) in COLUMNS.items()}
    lines = [f"# {c.names}", "", c.headline, "", markdown_table(text.rename(columns=titles)), ""]
    lines += [f"{note}\n" for note in c.notes]
    if len(c.differences):
        lines += ["## What differs", "", markdown_table(c.differences), ""]
    write_atomic(folder / "comparison.md", "\n".join(lines))
    write_atomic(folder / "comparison.html", comparison_page(c))
    return folder / "comparison.html"
