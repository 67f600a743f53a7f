"""`ablate logs STUDY [TRIAL]`: what a trial printed, with the traceback if it failed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import pick_trial
from ablate.errors import AblateError, StudyError
from ablate.rundir import ENDED, Attempt, StudyDir, TrialDir, find_study

__all__ = ["main"]

EXAMPLES = """\
  ablate logs hello                  of every failed trial
  ablate logs hello rope-s0          of the trial whose id contains this
  ablate logs hello rope-s0 -f       as it grows
  ablate logs hello rope-s0 --attempt 1
"""


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("logs", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument(
        "words", nargs="*", metavar="STUDY [TRIAL]", help="without TRIAL: those that failed"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="goes on while the trial runs")
    parser.add_argument("--attempt", type=int, help="which attempt; default: the newest")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if not 1 <= len(words) <= 2:
        raise AblateError(
            "name a study, and one of its trials if you like. `ablate list` shows the studies."
        )
    study = find_study(words[0], options.runs_dir)
    trials = [pick_trial(study, words[1])] if len(words) == 2 else _failed(study)
    if options.follow and len(trials) != 1:
        raise AblateError("--follow needs one trial: `ablate logs STUDY TRIAL -f`.")
    logs = [_attempt(trial, options.attempt) for trial in trials]
    if options.json:
        entries = [
            {"trial": a.trial.id, "attempt": a.number, "path": str(a.log_path), "text": _text(a)}
            for a in logs
        ]
        print(json.dumps({"study": study.name, "logs": entries}, indent=2))
        return 0
    if not logs:
        print(f"No trial of {study.name} has failed. Name one to see its log.", file=sys.stderr)
    for attempt in logs:
        print(f"==> {attempt.log_path} <==", file=sys.stderr)
        print(_text(attempt), end="")
        if options.follow:
            _follow(attempt)
    return 0


def _failed(study: StudyDir) -> list[TrialDir]:
    return [t for t in study.trials() if t.state().status == "failed" and t.newest_attempt()]


def _attempt(trial: TrialDir, number: int | None) -> Attempt:
    attempts = trial.attempts()
    if not attempts:
        raise StudyError(f"Trial {trial.id} has not been started yet.")
    if number is None:
        return attempts[-1]
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    raise StudyError(
        f"Trial {trial.id} has no attempt {number}: it has 1 to {attempts[-1].number}."
    )


def _text(attempt: Attempt) -> str:
    return attempt.log_path.read_text(errors="replace") if attempt.log_path.exists() else ""


def _follow(attempt: Attempt) -> None:
    with open(attempt.log_path, errors="replace") as file:
        file.seek(0, 2)
        while True:
            over = attempt.trial.live_state().status in (*ENDED, "preempted")
            print(file.read(), end="", flush=True)
            if over:
                return
            time.sleep(0.3)
