"""`ablate prune STUDY|--all`: old checkpoints, by rule. Shows what would go; --yes deletes it.

A running trial is left alone; every other keeps its newest checkpoint (one that may still go on:
two). --keep 0 also takes the last checkpoint of trials that are done or diverged; their curves and
summaries stay.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.errors import AblateError, StudyError
from ablate.launch.pruning import Old, delete, old_checkpoints
from ablate.rundir import StudyDir, find_study, list_studies

__all__ = ["main"]

EXAMPLES = """\
  ablate prune hello                 what would go, and how many bytes
  ablate prune hello --yes           deletes it
  ablate prune --all                 of every study in runs/
  ablate prune hello --keep 0        also the weights of finished trials
"""


def main(argv: Sequence[str]) -> int:
    """0; 1 where one of several studies is damaged."""
    parser = reading_parser("prune", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("study", nargs="*", help="names or folders of studies")
    parser.add_argument("--all", action="store_true", help="every study")
    parser.add_argument("--keep", type=int, default=1, metavar="N", help="of a finished trial (1)")
    parser.add_argument("--dry-run", action="store_true", help="only show it (the default)")
    parser.add_argument("--yes", action="store_true", help="delete it")
    options = parser.read(argv)
    words = take_runs_dir(options, options.study)
    if bool(words) == options.all:
        raise AblateError("name a study, or give --all for every study; not both, not neither.")
    if options.keep < 0:
        raise AblateError(f"--keep {options.keep}: must be 0 or more.")
    if options.yes and options.dry_run:
        raise AblateError("--yes deletes and --dry-run only shows: give one of them.")
    studies = (
        list_studies(options.runs_dir)
        if options.all
        else [find_study(word, options.runs_dir) for word in words]
    )
    old, damaged = _old(studies, options.keep)
    gone = [one for one in old if delete(one, options.keep)] if options.yes else []
    shown = gone if options.yes else old
    for said in damaged:
        print(f"ablate prune: {said}", file=sys.stderr)
    if options.json:
        entries = [
            {
                "trial": o.trial.id if o.trial else None,
                "path": str(o.path),
                "bytes": o.bytes,
                "deleted": options.yes,
            }
            for o in shown
        ]
        total = sum(o.bytes for o in shown)
        print(
            json.dumps({"bytes": total, "deleted": options.yes, "checkpoints": entries}, indent=2)
        )
    else:
        _show(shown, deleted=options.yes)
    return 1 if damaged else 0


def _old(studies: Sequence[StudyDir], keep: int) -> tuple[list[Old], list[str]]:
    """What may go; of several studies a damaged one is named, and stops no other."""
    found, damaged = [], []
    for study in studies:
        try:
            found += old_checkpoints(study, keep)
        except StudyError as error:
            if len(studies) == 1:
                raise
            damaged.append(str(error))
    return found, damaged


def _show(old: Sequence[Old], *, deleted: bool) -> None:
    by_study: dict[str, list[Old]] = defaultdict(list)
    for one in old:
        by_study[one.study.name].append(one)
    for study, found in by_study.items():
        print(f"{study}: {_told(found, of_trials=True)}, {size(sum(o.bytes for o in found))}")
    total = size(sum(o.bytes for o in old))
    if deleted and old:
        print(f"Deleted {_told(old)}, {total}.")
    elif old:
        print(f"{_told(old)} would go, {total}. Nothing was deleted: --yes does it.")
    else:
        print("There is nothing to prune.")


def _told(old: Sequence[Old], *, of_trials: bool = False) -> str:
    trials = [o.trial.id for o in old if o.trial]
    whose = f" of {len(set(trials))} trials" if of_trials else ""
    told = [f"{len(trials)} checkpoints{whose}"] if trials else []
    if columns := len(old) - len(trials):
        folders = "folder" if columns == 1 else "folders"
        told.append(f"{columns} {folders} of columns that an earlier version kept")
    return " and ".join(told)


def size(count: float) -> str:
    """1536 as 1.5 KB, in steps of 1000 as disks are sold."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
