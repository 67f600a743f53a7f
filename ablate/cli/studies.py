"""`ablate list`: the studies on disk, newest first."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.board import cut, screen_of
from ablate.cli.overview import counts_line, study_status
from ablate.errors import AblateError, StudyError
from ablate.rundir import StudyDir, list_studies

__all__ = ["main"]

EXAMPLES = """\
  ablate list
  ablate list runs_dir=/shared/runs --json
"""


def main(argv: Sequence[str]) -> int:
    """0; 1 where a manifest is damaged."""
    parser = reading_parser("list", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="runs_dir=DIR", help="where studies lie")
    options = parser.read(argv)
    left = take_runs_dir(options, options.words)
    if left:
        options.runs_dir = left[0]
    given = Path(options.runs_dir)
    if given.exists() and not given.is_dir():
        raise AblateError(f"{given} is no folder, so no studies lie in it.")
    if options.runs_dir != parser.get_default("runs_dir") and not given.exists():
        named = Path(parser.get_default("runs_dir")) / given
        study = StudyDir(named).exists()
        more = f" To see the study: ablate status {shlex.quote(str(given))}." if study else ""
        raise AblateError(f"There is no folder {given}.{more}")
    studies = [_entry(study) for study in list_studies(options.runs_dir)]
    # By the day that is shown: an extension makes a manifest new, and no study.
    studies.sort(key=lambda s: s.get("created") or 0.0, reverse=True)
    if options.json:
        print(json.dumps({"runs_dir": options.runs_dir, "studies": studies}, indent=2))
    else:
        _show(studies, options.runs_dir)
    return 1 if any(s["state"] == "damaged" for s in studies) else 0


def _entry(study: StudyDir) -> dict[str, Any]:
    """A damaged study is listed as such, and hides no other."""
    try:
        status = study_status(study)
    except (StudyError, OSError) as error:
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
    if not studies:
        print(f"There are no studies in {runs_dir}. `ablate launch sweep=hello` makes one.")
        return
    screen = screen_of(sys.stdout)
    rows = [("study", "state", "made", "trials", "question")] + [_row(s) for s in studies]
    widths = [max(len(row[c]) for row in rows) for c in range(4)]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        # Where there is no room for all of it, the question goes first, then the day, then counts.
        kept = cells if sum(widths) + 8 <= screen.width else [cells[0], cells[1], cells[3]]
        line = cut("  ".join([*kept, row[4]]), screen.width)
        print(screen.paint(line, "bold") if number == 0 else line)


def _row(s: dict[str, Any]) -> tuple[str, ...]:
    made = s.get("created")
    day = (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(made))
        if isinstance(made, int | float)
        else ""
    )
    counts = counts_line(s["counts"]) if "counts" in s else ""
    return s["study"], s["state"], day, counts, " ".join(s["question"].split())
