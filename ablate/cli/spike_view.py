"""How `ablate spikes` shows events: a table, a plot, one line at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.errors import AblateError
from ablate.spikes import Event
from ablate.spikes.read import Table

__all__ = ["line", "plot", "show"]

COLUMNS = ("kind", "start", "detect", "peak", "end", "height", "sigma", "area", "recovery", "cause")

WIDTH = 200
"""Columns that the widest table needs; a narrower terminal wraps it."""


def show(record: Mapping[str, Any]) -> None:
    """Events and scores of one record."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, WIDTH)  # a step that is cut short is no step
    console.print(Text(record["name"], style="bold"))
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        justify = "left" if title in ("kind", "cause") else "right"
        grid.add_column(title, no_wrap=True, justify=justify)
    for event in record["events"]:
        grid.add_row(*(Text(cell(event[title])) for title in COLUMNS))
    console.print(grid if record["events"] else "no events")
    for event in record["events"]:
        if event.get("batch") is not None:
            console.print(Text(_batch(event)))
    scores = (f"{k} {cell(v)}" for k, v in record["scores"].items() if v is not None)
    console.print(Text(" · ".join(scores)))
    if record["scores"]["olmo2_score"] is None:
        console.print(Text("olmo2_score: none, the record is shorter than its window (1000 rows)"))


def _batch(event: Mapping[str, Any]) -> str:
    """The batch that the data caused an event with, and what is in it."""
    said = f"step {event['peak']}: batch {event['batch']}, sequences {listed(event['sequences'])}"
    if event["documents"]:
        said += f"; documents {listed(event['documents'])}"
    if event["repetitive"]:
        said += f"; repeated n-grams in {listed(event['repetitive'])}"
    return said + "".join(f"\n    {text}" for text in event["texts"][:2])


def listed(numbers: list[int], most: int = 12) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def line(event: Event) -> str:
    """One event as it is seen while a run goes on."""
    said = f"step {event.start}: {event.kind}"
    if event.sigma is not None and event.height is not None:
        said += f", {event.height:.3g} nats ({event.sigma:.3g} sigma) at step {event.peak}"
    if not event.closed:
        return f"{said}, alarm at step {event.detect}"
    end = f" by step {event.end}" if event.recovery not in (None, "unrecovered") else ""
    return f"{said}, {event.recovery or 'over'}{end}"


def cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plot(tables: Mapping[str, Table], found: Mapping[str, list[Event]], path: Path) -> None:
    """The losses with the events marked.

    Raises:
        AblateError: for a file name whose ending is no picture's.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(tables), 1, figsize=(10, 3 * len(tables)), squeeze=False)
    for axis, (name, table) in zip(axes[:, 0], tables.items(), strict=True):
        axis.plot(table.steps, table.losses, linewidth=0.6, color="0.4")
        for event in found[name]:
            end = event.start if event.end is None else event.end
            color = {"data": "tab:blue", "arm": "tab:red"}.get(event.cause or "", "tab:orange")
            color = color if event.is_alert or event.cause else "0.7"
            axis.axvspan(event.start, max(end, event.start + 1), color=color, alpha=0.3)
            if event.is_alert:
                said = event.kind if event.cause is None else f"{event.kind} ({event.cause})"
                axis.annotate(said, (event.start, 0.97), fontsize=7, va="top",
                              xycoords=("data", "axes fraction"))  # fmt: skip
        axis.set(title=name, xlabel="step", ylabel="loss (nats)")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise AblateError(f"--plot {path}: {error}. Let the name end in .png.") from None
    finally:
        plt.close(figure)
    print(f"wrote {path}", file=sys.stderr)
