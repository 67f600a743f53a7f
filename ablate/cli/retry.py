"""`ablate retry STUDY [TRIAL...]`: runs again what failed or was cancelled, where it was launched.

A trial goes on from its newest checkpoint; a diverged one, which is a result and is taken only if
you ask for it, begins afresh. What was done stays done. On SLURM it is submitted, here it is run.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import pick_trial
from ablate.errors import AblateError
from ablate.launch.retrying import RETRIED, chosen, mend_states, reopen
from ablate.rundir import find_study

__all__ = ["main"]

EXAMPLES = """\
  ablate retry hello                     what failed or was cancelled
  ablate retry hello --failed            only what failed
  ablate retry hello --diverged          from the start; by default a divergence is a result
  ablate retry hello rope-s0 rope-s1     the trials whose ids contain these
  ablate retry hello --dry-run
  ablate retry hello --here              on this machine, though it was launched on SLURM
"""


def main(argv: Sequence[str]) -> int:
    """0 all well, 1 some trial failed again, 2 a wrong request."""
    parser = reading_parser("retry", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="STUDY [TRIAL...]", help="without: all trials")
    for status in (*RETRIED, "diverged"):
        parser.add_argument(f"--{status}", action="store_true", help=f"those that are {status}")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run again")
    parser.add_argument("--here", action="store_true", help="on this machine, not on SLURM")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if not words:
        raise AblateError("name a study; `ablate list` shows those on disk.")
    if options.json and not options.dry_run:
        raise AblateError("--json needs --dry-run here; afterwards `ablate status --json` tells.")
    study = find_study(words[0], options.runs_dir)
    statuses = [s for s in (*RETRIED, "diverged") if getattr(options, s)]
    if statuses and words[1:]:
        raise AblateError(f"name trials, or give --{statuses[0]}; not both.")
    ids = [pick_trial(study, word).id for word in words[1:]] or None
    trials = chosen(study, statuses or RETRIED, ids)
    if options.dry_run:
        if options.json:
            print(json.dumps({"study": study.name, "trials": [t.id for t in trials]}, indent=2))
        else:
            print(*[t.id for t in trials], f"{len(trials)} trials. Nothing was done.", sep="\n")
        return 0
    mended = mend_states(study)
    for said in mended:
        print(f"ablate retry: {said}", file=sys.stderr)
    if not trials:
        print(f"{study.name}: nothing {' or '.join(statuses or RETRIED)}, so nothing to run again.")
        return 1 if mended else 0
    for trial in trials:
        print(f"{trial.id} {reopen(trial)}", flush=True)
    from ablate.cli.running import run_study

    command = shlex.join(["ablate", "retry", *argv])
    return run_study(study, trials, command, here=options.here) or (1 if mended else 0)
