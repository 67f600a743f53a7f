"""`ablate status STUDY`: where every trial stands, from any shell, after any crash."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.overview import study_status
from ablate.errors import AblateError
from ablate.rundir import find_study

__all__ = ["STYLES", "counts_line", "main"]

EXAMPLES = """\
  ablate status hello
  ablate status runs/hello --json
  ablate status hello runs_dir=/shared/runs
"""

STYLES = {
    "done": "green",
    "diverged": "yellow",
    "failed": "red",
    "running": "cyan",
    "preempted": "magenta",
    "pending": "dim",
    "cancelled": "dim",
}


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("status", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("study", nargs="*", help="a study's name or folder")
    options = parser.read(argv)
    words = take_runs_dir(options, options.study)
    if len(words) != 1:
        raise AblateError("name one study; `ablate list` shows those on disk.")
    status = study_status(find_study(words[0], options.runs_dir))
    if options.json:
        print(json.dumps(status, indent=2))
        return 0
    _show(status)
    return 0


def counts_line(counts: dict[str, int]) -> str:
    """`12 done, 1 failed, 2 pending`."""
    return ", ".join(f"{n} {status}" for status, n in counts.items() if n) or "no trials"


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{status['study']}: {counts_line(status['counts'])}", style="bold"))
    if status["question"]:
        console.print(Text(status["question"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("trial", "status", "step", "attempt", "loss"):
        table.add_column(
            title, justify="right" if title in ("step", "attempt", "loss") else "left", no_wrap=True
        )
    for t in status["trials"]:
        loss = "" if t.get("loss") is None else f"{t['loss']:.4f}"
        style = STYLES.get(t["status"], "")
        table.add_row(
            Text(t["id"]),
            Text(t["status"], style=style),
            f"{t['step']}/{t['steps']}",
            str(t["attempt"]),
            loss,
        )
    console.print(table)
    for t in status["trials"]:
        if t["reason"] and t["status"] in ("failed", "diverged", "preempted"):
            console.print(Text(f"{t['id']}: {t['reason']}", style=STYLES[t["status"]]))
    if status["counts"]["failed"]:
        console.print(Text(f"The tracebacks: ablate logs {status['study']}"))
