"""The verdict table in a terminal: readable at 60 columns and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ablate.analysis.bands import bands, sparkline
from ablate.analysis.cells import TEXT, cells
from ablate.analysis.claims_view import claims_view
from ablate.analysis.display import decimals, display, explain, fixed, headline, level
from ablate.analysis.fitting import fitting, left_out
from ablate.analysis.judgement import Judgement
from ablate.analysis.registry import Section

__all__ = ["render", "show"]

STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "equivalent": "cyan",
    "undecided": "yellow",
    "edge": "magenta",
    "baseline": "dim",
}


_LONGEST = 60
"""Rows of a table in a terminal; the page has the rest."""
_LEAST = 12
"""Characters of an arm's name, before an interval is broken."""


def show(
    j: Judgement,
    console: Console | None = None,
    made: Sequence[tuple[Section, pd.DataFrame]] = (),
) -> None:
    """Prints the study's verdicts, and the tables that belong in a terminal, to `console`."""
    console = console or Console(highlight=False)
    console.print(render(j, console.width, made))


def render(
    j: Judgement, width: int, made: Sequence[tuple[Section, pd.DataFrame]] = ()
) -> RenderableType:
    """Everything that is printed of a study, for a terminal of `width` columns."""
    parts: list[RenderableType] = [Text(j.study, style="bold")]
    if j.manifest.get("question"):
        parts.append(Text(str(j.manifest["question"])))
    parts += [Text(f"EXPLORATORY: {reason}.", style="bold yellow") for reason in j.exploratory]
    parts += _verdicts(j, width)
    parts += [
        Text.assemble((f"{row['arm']}: ", "bold"), row["note"])
        for row in j.table.to_dict("records")
        if row["note"]
    ]
    parts += [Text(headline(j), style="bold"), Text(explain(j), style="dim"), *map(Text, j.notes)]
    for section, frame in made:
        if section.name == "claims":  # a claim is a sentence, and no cell of a table
            parts += [Text(""), Text(section.title, style="bold"), claims_view(frame)]
        if section.terminal and len(frame) <= _LONGEST:
            parts += [Text(""), Text(section.title, style="bold")]
            parts += _section(section, frame, j, width)
    curves = _curves(j, width)
    if curves is not None:
        parts.append(Padding(curves, (1, 0, 0, 0)))
    return Group(*parts)


def _verdicts(j: Judgement, width: int) -> list[RenderableType]:
    """The table, and below it each arm's reference where it has no column and cannot be guessed."""
    rows = display(j)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm", overflow="fold")
    columns, gone = _columns(rows, width, f"{level(j)} interval", j)
    fixed_width = sum(_width(rows, c, h) for c, h in (*columns, ("verdict", "verdict")))
    narrow = width - fixed_width < _LEAST
    for column, header in columns:
        justify = "left" if column == "reference" else "right"
        if narrow and column == "interval":  # its ends below each other, at the space between them
            half = max(map(len, " ".join(rows[column]).split()), default=1)
            table.add_column(header, justify=justify, min_width=half, max_width=half)
        else:
            table.add_column(header, justify=justify, no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows.to_dict("records"):
        style = STYLES.get(row["verdict"], "")
        table.add_row(row["arm"], *(row[c] for c, _ in columns), Text(row["verdict"], style=style))
    below = [Text(left_out(gone, width), style="dim")] if gone else []
    if j.ladder and not j.rungs and columns[0][0] != "reference":
        compared = rows[rows["reference"] != ""].groupby("reference", sort=False)["arm"]
        below += [Text(f"Against {r}: {', '.join(arms)}.") for r, arms in compared]
    return [table, *below]


def _section(
    section: Section, frame: pd.DataFrame, j: Judgement, width: int
) -> list[RenderableType]:
    """One of the other tables: as many of its columns as fit, what they say, what was left out."""
    text = cells(frame, section.columns, decimals(j))
    titles = {c: section.columns[c][0] for c in text}
    shown = fitting(text, titles, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown:
        if column == shown[0]:
            table.add_column(titles[column], overflow="fold")
        else:
            left = section.columns[column][1] in TEXT
            table.add_column(titles[column], justify="left" if left else "right", no_wrap=True)
    for row in text[shown].to_dict("records"):
        table.add_row(*row.values())
    gone = left_out([titles[c] for c in text if c not in shown], width)
    said = [section.said(shown, level(j)), gone]
    return [table, *(Text(line, style="dim") for line in said if line)]


def _columns(
    rows: pd.DataFrame, width: int, interval: str, j: Judgement
) -> tuple[list[tuple[str, str]], list[str]]:
    """The most that fits beside whole arm names, the difference and its interval always, the rest
    if there is room; and the headers of what has none.
    """
    columns = [("difference", "Δ"), ("interval", interval)]
    wished = [(1, "p", "p"), (0, "seeds", "seeds"), (0, "mean", j.rule.metric)]
    if j.ladder:
        wished.insert(0, (1, "baseline_difference", f"Δ {j.baseline}"))
        wished.append((1, "baseline_interval", interval))
    if (rows["lr"] != "").any():
        wished.insert(0, (0, "lr", "lr"))
    room = width - sum(
        _width(rows, c, h) for c, h in (("arm", "arm"), *columns, ("verdict", "verdict"))
    )
    left, right = [], []
    if j.ladder and not j.rungs:
        needs = _width(rows, "reference", "against")
        if needs <= room:
            room -= needs
            left.append(("reference", "against"))
    gone = []
    for side, column, header in wished:
        room -= _width(rows, column, header)
        if room < 0:
            gone.append(header if column != "baseline_interval" else f"{header} of Δ {j.baseline}")
        else:
            (left if side == 0 else right).append((column, header))
    return [*left, *columns, *right], gone


def _width(rows: pd.DataFrame, column: str, header: str) -> int:
    return max(len(header), *rows[column].str.len()) + 2


def _curves(j: Judgement, width: int) -> Table | None:
    """The training loss of each arm, on one scale, as a line of blocks."""
    metric = "train/loss" if "train/loss" in j.frames.curves else j.rule.metric
    frame = bands(j.frames.curves, metric, ids=j.finished)
    if not len(frame):
        return None
    low = float(frame["mean"].min())
    # The first steps are far above the rest: the scale starts where nine tenths of the curve lie.
    high = float(np.quantile(frame["mean"], 0.9))
    names = [a for a in j.table["arm"] if (frame["arm"] == a).any()]
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=True)
    table.add_column(metric, overflow="fold")
    table.add_column(f"step 1 to {int(frame['step'].max())}", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    room = max(10, min(48, width - max(map(len, names)) - 18))
    for name in names:
        mean = frame.loc[frame["arm"] == name, "mean"].to_numpy()
        row = j.table[j.table["arm"] == name].iloc[0]
        if row["diverged"]:  # the curve is the survivors'
            name = f"{name} ({row['seeds']}/{row['seeds'] + row['diverged']})"
        line = sparkline(mean, low=low, high=high, width=room)
        table.add_row(name, line, fixed(float(mean[-1]), 3))
    return table
