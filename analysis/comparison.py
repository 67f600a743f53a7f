"""Several studies, each judged, side by side: `ablate report A B`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from ablate.analysis.cells import TEXT, cells
from ablate.analysis.display import decimals
from ablate.analysis.judgement import Judgement, plain
from ablate.analysis.markdown import changes, markdown_table
from ablate.analysis.tables.studies import compare_studies
from ablate.rundir import write_atomic

__all__ = ["compare", "show_comparison", "write_comparison"]

COLUMNS = {
    "study": ("study", "s"),
    "arm": ("arm", "s"),
    "difference": ("difference", "+m"),
    "low": ("low", "+m"),
    "high": ("high", "+m"),
    "seeds": ("seeds", "d"),
    "verdict": ("verdict", "s"),
    "pooled": ("pooled", "+m"),
    "pooled_low": ("low", "+m"),
    "pooled_high": ("high", "+m"),
    "p_agree": ("agree p", "p"),
    "change": ("change", "s"),
}


def compare(judged: Sequence[Judgement]) -> tuple[pd.DataFrame, list[str]]:
    """The table of `compare_studies`, and what stands in the way of reading it as one result."""
    made = {}
    for j in judged:
        arms = {a["name"]: a for a in j.manifest.get("arms", [])}
        made[j.study] = {
            row["arm"]: changes(arms.get(row["arm"], {}), arms.get(row["reference"]))
            for row in j.table.to_dict("records")
            if isinstance(row["reference"], str)
        }
    notes = []
    metrics = {j.study: j.rule.metric for j in judged}
    if len(set(metrics.values())) > 1:
        notes.append(f"metric: the studies decide on different ones ({metrics}): nothing pooled.")
        return pd.DataFrame(), notes
    base = [_baseline(j) for j in judged]
    for j, other in zip(judged[1:], base[1:], strict=True):
        fields = sorted(k for k in base[0].keys() | other.keys() if base[0].get(k) != other.get(k))
        if fields:
            notes.append(
                f"The baselines of {judged[0].study} and {j.study} differ in "
                + ", ".join(fields[:8])
                + (f" and {len(fields) - 8} more" if len(fields) > 8 else "")
                + "."
            )
    tables = {j.study: j.table for j in judged}
    return compare_studies(tables, made, alpha=judged[0].rule.alpha), notes


def _baseline(j: Judgement) -> dict[str, str]:
    """The configuration of the baseline (without seed), and the data and code it ran on."""
    trials = j.frames.trials
    own = trials[trials["arm"] == j.baseline].head(1).to_dict("records")
    if not own:
        return {}
    ignored = ("seed", "study", "runs_dir", "force", "track.", "cluster.")
    config = j.frames.configs.get((j.study, own[0]["id"]), {})
    kept = {k: str(v) for k, v in config.items() if not k.startswith(ignored)}
    recorded = {k: str(own[0][k]) for k in ("data_fingerprint", "torch") if k in own[0]}
    return kept | recorded | {"code": str((j.manifest.get("code") or {}).get("commit"))}


def show_comparison(
    table: pd.DataFrame, notes: Sequence[str], judged: Sequence[Judgement], console: Console
) -> None:
    """Prints it."""
    console.print("[bold]The studies side by side[/bold]")
    if not len(table):
        console.print("No change was made by two of them: there is nothing to compare.")
    else:
        text = cells(table, COLUMNS, decimals(judged[0]))
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column in text:
            title, form = COLUMNS[column]
            shown.add_column(title, justify="left" if form in TEXT else "right", overflow="fold")
        for row in text.to_dict("records"):
            shown.add_row(*row.values())
        console.print(shown)
    for note in notes:
        console.print(note, style="yellow")


def write_comparison(
    table: pd.DataFrame, notes: Sequence[str], judged: Sequence[Judgement], folder: Path
) -> Path:
    """Writes comparison.csv, .parquet and .md; returns the last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "comparison.csv", table.to_csv(index=False))
    table.to_parquet(folder / "comparison.parquet", index=False)
    text = cells(table, COLUMNS, decimals(judged[0])).rename(
        columns={c: title for c, (title, _) in COLUMNS.items()}
    )
    names = " and ".join(j.study for j in judged)
    lines = [f"# {names}", "", markdown_table(text), "", *notes, ""]
    write_atomic(folder / "comparison.md", "\n".join(lines))
    return folder / "comparison.md"


def to_json(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values."""
    return [{str(k): plain(v) for k, v in row.items()} for row in table.to_dict("records")]
