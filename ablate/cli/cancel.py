"""`ablate cancel STUDY [TRIAL|ARM...]`: ends trials for good, running or not, here or on SLURM.

What runs saves a checkpoint and stops at its next step; asked a second time, SLURM ends its job.
What has ended is left alone. A cancelled trial is run again by `ablate retry` only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import pick_trials
from ablate.errors import AblateError
from ablate.launch.cancelling import cancel
from ablate.launch.observe import scheduler_of
from ablate.rundir import ENDED, find_study

__all__ = ["main"]

EXAMPLES = """\
  ablate cancel hello                      all that has not ended
  ablate cancel hello rms-s0 rms-s1        the trials whose ids contain these
  ablate cancel hello +qk_norm             an arm
  ablate cancel hello --dry-run
"""


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("cancel", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument(
        "words", nargs="*", metavar="STUDY [TRIAL|ARM...]", help="without: all trials"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be cancelled")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if not words:
        raise AblateError("name a study; `ablate list` shows those on disk.")
    study = find_study(words[0], options.runs_dir)
    ids = [id for ids in pick_trials(study, words[1:]) for id in ids] if words[1:] else None
    if options.dry_run:
        trials = [t for t in study.trials() if ids is None or t.id in ids]
        found = [t.id for t in trials if t.live_state().status not in ENDED]
        if options.json:
            print(json.dumps({"study": study.name, "trials": found}, indent=2))
        else:
            print("".join(f"{id}\n" for id in found), end="")
            print(f"{len(found)} trials. Nothing was done.", file=sys.stderr)
        return 0
    scheduler = scheduler_of(study)
    done = cancel(study, ids, scheduler)
    if scheduler is not None and done.jobs:
        scheduler.jobs(done.jobs)  # whether it answers
    silent = bool(done.jobs) and (scheduler is None or not scheduler.answered())
    if options.json:
        shown = {**vars(done), "scheduler": "silent" if silent else "answers"}
        print(json.dumps({"study": study.name, **shown}, indent=2))
        return 0
    print(
        f"{study.name}: {len(done.ended)} cancelled, {len(done.asked)} save and stop at their next "
        f"step, {len(done.over)} had ended before."
    )
    if done.jobs and not silent:
        print(f"scancel for {len(done.jobs)} jobs of SLURM.")
    if silent:
        print("SLURM does not answer; its jobs will find the marks when they start, and end.")
    return 0
