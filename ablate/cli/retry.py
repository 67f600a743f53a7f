"""`ablate retry STUDY [TRIAL|ARM...]`: runs again what failed or was cancelled, where it was
launched.

A trial goes on from its newest checkpoint; a diverged one, which is a result and is taken only if
you ask for it, begins afresh. What was done stays done. On SLURM it is submitted, here it is run.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import pick_trials
from ablate.errors import AblateError
from ablate.launch.retrying import RETRIED, chosen, mend_states, refuse_edited, reopen
from ablate.rundir import StudyDir, TrialDir, find_study

__all__ = ["main"]

EXAMPLES = """\
  ablate retry hello                     what failed or was cancelled
  ablate retry hello --failed            only what failed
  ablate retry hello --diverged          from the start; by default a divergence is a result
  ablate retry hello rms-s0 rms-s1       the trials whose ids contain these
  ablate retry hello +qk_norm            what failed or was cancelled of an arm
  ablate retry hello --dry-run
  ablate retry hello --here              on this machine, though it was launched on SLURM
"""


def main(argv: Sequence[str]) -> int:
    """0 all well, 1 some trial failed again, 2 a wrong request."""
    parser = reading_parser("retry", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument(
        "words", nargs="*", metavar="STUDY [TRIAL|ARM...]", help="without: all trials"
    )
    for status in (*RETRIED, "diverged"):
        parser.add_argument(f"--{status}", action="store_true", help=f"those that are {status}")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run again")
    parser.add_argument("--here", action="store_true", help="on this machine, not on SLURM")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if not words:
        raise AblateError("name a study; `ablate list` shows those on disk.")
    study = find_study(words[0], options.runs_dir)
    statuses = [s for s in (*RETRIED, "diverged") if getattr(options, s)]
    if statuses and words[1:]:
        raise AblateError(f"name trials, or give --{statuses[0]}; not both.")
    trials = _chosen(study, words[1:], statuses or RETRIED)
    if options.dry_run:
        if options.json:
            print(json.dumps({"study": study.name, "trials": [t.id for t in trials]}, indent=2))
        else:
            print(*[t.id for t in trials], f"{len(trials)} trials. Nothing was done.", sep="\n")
        return 0
    mended = mend_states(study)
    for said in mended:
        print(f"ablate retry: {said}", file=sys.stderr)
    out = sys.stderr if options.json else sys.stdout
    if not trials:
        what = " or ".join(statuses or RETRIED)
        print(f"{study.name}: nothing {what}, so nothing to run again.", file=out)
        return _told(study, options.json, 1 if mended else 0)
    refuse_edited(study, trials)
    for trial in trials:
        print(f"{trial.id} {reopen(trial)}", file=out, flush=True)
    from ablate.cli.running import run_study

    command = shlex.join(["ablate", "retry", *argv])
    code = run_study(study, trials, command, here=options.here) or (1 if mended else 0)
    return _told(study, options.json, code)


def _told(study: StudyDir, as_json: bool, code: int) -> int:
    """What `ablate status --json` prints, where that was asked for; the exit code."""
    if as_json:
        from ablate.cli.overview import study_status

        print(json.dumps(study_status(study), indent=2))
    return code


def _chosen(study: StudyDir, words: Sequence[str], statuses: Sequence[str]) -> list[TrialDir]:
    """The trials that were named; of an arm, and without names of the study, those of the
    statuses.
    """
    if not words:
        return chosen(study, statuses, None)
    named, of_arms = pick_trials(study, words)
    wanted = {t.id for t in chosen(study, statuses, None)} & set(of_arms)
    if named:
        wanted |= {t.id for t in chosen(study, statuses, named)}
    return [t for t in study.trials() if t.id in wanted]
