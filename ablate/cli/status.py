"""`ablate status STUDY`: where every trial stands, from any shell, after any crash.

By the study's own files first and SLURM's word second; it needs neither the launching process nor
accounting, and works where the study's folder was moved to. Writes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.board import board, screen_of, show
from ablate.cli.overview import damages_of, study_status
from ablate.errors import AblateError
from ablate.launch.observe import scheduler_of
from ablate.rundir import find_study

__all__ = ["main"]

EXAMPLES = """\
  ablate status hello
  ablate status hello --all                   a line a trial, however many
  ablate status runs/hello --json
  ablate status hello runs_dir=/shared/runs
  ablate status hello --files                 does not ask SLURM
"""


def main(argv: Sequence[str]) -> int:
    """0; 1 where files of a trial are damaged."""
    parser = reading_parser("status", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("study", nargs="*", help="a study's name or folder")
    parser.add_argument("--all", action="store_true", help="every trial, also of a large study")
    parser.add_argument("--files", action="store_true", help="from the files alone; asks no SLURM")
    options = parser.read(argv)
    words = take_runs_dir(options, options.study)
    if len(words) != 1:
        raise AblateError("name one study; `ablate list` shows those on disk.")
    study = find_study(words[0], options.runs_dir)
    status = study_status(study, None if options.files else scheduler_of(study))
    if options.json:
        print(json.dumps(status, indent=2))
    else:
        show(board(status, screen_of(sys.stdout), everything=options.all))
    return 1 if damages_of(status["trials"]) else 0
