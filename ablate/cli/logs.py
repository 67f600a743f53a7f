"""`ablate logs TRIAL|STUDY`: what a trial printed, with the traceback if it failed."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import find_trial, pick_trial
from ablate.errors import AblateError, StudyError
from ablate.rundir import ENDED, Attempt, StudyDir, TrialDir, find_study
from ablate.rundir.files import open_file
from ablate.rundir.names import MANIFEST

__all__ = ["main"]

EXAMPLES = """\
  ablate logs hello                  of every failed trial
  ablate logs hello qk_norm-s0       of the trial whose id contains this (or hello/qk_norm-s0)
  ablate logs hello qk_norm-s0 -f    as it grows, also over a requeue
  ablate logs hello -f               of all that run, each line with its trial
  ablate logs hello qk_norm-s0 --attempt 1
  ablate logs hello qk_norm-s0 --tail 20
"""

LOOK_SECONDS = 0.3


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("logs", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument(
        "words", nargs="*", metavar="STUDY [TRIAL]", help="without TRIAL: those that failed"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="goes on while the trial runs")
    parser.add_argument("--attempt", type=int, help="which attempt; default: the newest")
    parser.add_argument("--tail", type=int, metavar="N", help="the last N lines only")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if options.tail is not None and options.tail < 0:
        raise AblateError(f"--tail {options.tail}: must not be negative.")
    study, chosen = _chosen(words, options.runs_dir)
    if options.follow and options.json:
        raise AblateError("--follow has no end, so it cannot be one JSON object: leave out --json.")
    if options.follow:
        trials = [chosen] if chosen else study.trials()
        return _follow_all(trials, options.attempt, options.tail, named=chosen is None)
    trials = [chosen] if chosen else _failed(study)
    logs = [_attempt(trial, options.attempt) for trial in trials]
    texts = [_tail(_text(attempt), options.tail) for attempt in logs]
    if options.json:
        entries = [
            {"trial": a.trial.id, "attempt": a.number, "path": str(a.log_path), "text": text}
            for a, text in zip(logs, texts, strict=True)
        ]
        print(json.dumps({"study": study.name, "logs": entries}, indent=2))
        return _say_damages(study, chosen)
    if not logs:
        print(f"No trial of {study.name} has failed. Name one to see its log.", file=sys.stderr)
    for attempt, text in zip(logs, texts, strict=True):
        # The headers part the logs of a study; that of the one trial that was named is whole.
        to = sys.stderr if chosen else sys.stdout
        print(f"==> {attempt.log_path} <==", file=to, flush=True)
        print(text, end="" if chosen or text.endswith("\n") or not text else "\n")
    return _say_damages(study, chosen)


def _say_damages(study: StudyDir, chosen: TrialDir | None) -> int:
    """Names trials whose state or attempts cannot be read; 1 where there are any."""
    trials = [chosen] if chosen else study.trials()
    found = [(t.id, d) for t in trials for d in (t.state().damage, t.record_damage())]
    wrong = [f"{id}: {damage}" for id, damage in found if damage]
    for said in wrong:
        print(f"ablate logs: {said}", file=sys.stderr)
    return 1 if wrong else 0


def _chosen(words: Sequence[str], runs_dir: str) -> tuple[StudyDir, TrialDir | None]:
    """STUDY, STUDY TRIAL, STUDY/TRIAL or the folder of a trial."""
    if not 1 <= len(words) <= 2:
        raise AblateError(
            "name a study, and one of its trials if you like. `ablate list` shows the studies."
        )
    if len(words) == 2:
        study = find_study(words[0], runs_dir)
        return study, pick_trial(study, words[1])
    word = words[0].rstrip("/")
    is_study = any((path / MANIFEST).exists() for path in (Path(word), Path(runs_dir) / word))
    if is_study or "/" not in word:
        return find_study(word, runs_dir), None
    trial = find_trial(word, runs_dir)
    return StudyDir(trial.study_path), trial


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
    try:
        with io.TextIOWrapper(open_file(attempt.log_path), "utf-8", "replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _tail(text: str, lines: int | None) -> str:
    if lines is None:
        return text
    return "".join(text.splitlines(keepends=True)[-lines:] if lines else [])


# ---- as they grow


def _follow_all(
    trials: Sequence[TrialDir], number: int | None, tail: int | None, *, named: bool
) -> int:
    """Until no trial goes on; one that is requeued is followed into its next attempt."""
    if not named:
        _attempt(trials[0], number)  # raises where there is nothing to follow
    followed = [Followed(t, number, named) for t in trials]
    for one in followed:
        one.skip_to(tail if not named or tail is not None else 0)
    if named:  # of a study, only what goes on, or starts meanwhile
        followed = [one for one in followed if one.trial.state().status not in ENDED]
    while followed:
        going = [one.look() for one in followed]
        followed = [  # one that ended after it was looked at has written more since
            one
            for one, goes_on in zip(followed, going, strict=True)
            if goes_on or one.trial.state().status not in ENDED
        ]
        if not any(going):
            break
        time.sleep(max(LOOK_SECONDS, len(followed) / 1000))
    return 0


class Followed:
    """The log of a trial, from attempt to attempt."""

    def __init__(self, trial: TrialDir, number: int | None, named: bool) -> None:
        self.trial = trial
        self._only, self._named = number, named
        self._attempt, self._position, self._rest = 0, 0, ""

    def skip_to(self, tail: int | None) -> None:
        """The newest attempt's log; all but its last `tail` lines are passed over."""
        attempts = self.trial.attempts()
        if not attempts:
            return
        self._attempt = self._only or attempts[-1].number
        try:
            with open_file(Attempt(self.trial, self._attempt).log_path) as file:
                lines = file.readlines()
        except FileNotFoundError:
            return
        if tail is not None:
            self._position = sum(map(len, lines[: max(0, len(lines) - tail)]))

    def look(self) -> bool:
        """Prints what is new; whether the trial goes on."""
        goes_on = _goes_on(self.trial)  # asked first: what it wrote before its end is read below
        numbers = [a.number for a in self.trial.attempts()]
        newest = self._only or (numbers[-1] if numbers else 0)
        if self._attempt == 0 and newest:
            self._attempt = newest
        self._read()
        while self._attempt < newest:
            self._attempt, self._position = self._attempt + 1, 0
            self._read()
        if not goes_on:
            self._print(self._rest)
            self._rest = ""
        return goes_on

    def _read(self) -> None:
        try:
            with open_file(Attempt(self.trial, self._attempt).log_path) as file:
                file.seek(self._position)
                piece = file.read()
                self._position = file.tell()
        except (FileNotFoundError, NotADirectoryError):
            return
        if not self._named:
            self._print(piece.decode(errors="replace"))
            return
        *lines, self._rest = (self._rest + piece.decode(errors="replace")).split("\n")
        for line in lines:
            self._print(f"{line}\n")

    def _print(self, text: str) -> None:
        if text:
            print(f"{self.trial.id}: {text}" if self._named else text, end="", flush=True)


def _goes_on(trial: TrialDir) -> bool:
    """Whether it runs, or waits in SLURM's queue to go on."""
    state = trial.live_state()
    if state.status == "running":
        return True
    if state.status in ENDED:
        return False
    return state.job_id is not None and state.outcome in ("preempted", "time_limit", "node")
