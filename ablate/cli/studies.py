"""`ablate list`: the studies on disk, newest first."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.overview import study_status
from ablate.cli.status import counts_line
from ablate.errors import StudyError
from ablate.rundir import StudyDir, list_studies

__all__ = ["main"]

EXAMPLES = """\
  ablate list
  ablate list runs_dir=/shared/runs --json
"""


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("list", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="runs_dir=DIR", help="where studies lie")
    options = parser.read(argv)
    left = take_runs_dir(options, options.words)
    if left:
        options.runs_dir = left[0]
    studies = [_entry(study) for study in list_studies(options.runs_dir)]
    if options.json:
        print(json.dumps({"runs_dir": options.runs_dir, "studies": studies}, indent=2))
        return 0
    _show(studies, options.runs_dir)
    return 0


def _entry(study: StudyDir) -> dict[str, Any]:
    """A damaged study is listed as such, and hides no other."""
    try:
        status = study_status(study)
    except StudyError as error:
        return {
            "study": study.name,
            "path": str(study.path),
            "state": "damaged",
            "question": str(error),
        }
    arms = {t["arm"] for t in status["trials"]}
    return {
        **{k: v for k, v in status.items() if k != "trials"},
        "arms": len(arms),
        "trials": len(status["trials"]),
    }


def _show(studies: list[dict[str, Any]], runs_dir: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not studies:
        print(f"There are no studies in {runs_dir}. `ablate launch sweep=hello` makes one.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("study", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("trials", no_wrap=True)
    table.add_column("made", no_wrap=True)
    table.add_column("question", ratio=1)
    for s in studies:
        made = (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(s["created"]))
            if s.get("created")
            else ""
        )
        counts = counts_line(s["counts"]) if "counts" in s else ""
        table.add_row(s["study"], s["state"], counts, made, Text(s["question"]))
    Console(highlight=False).print(table)
