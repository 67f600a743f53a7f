"""`ablate watch STUDY`: the status, live, until the study ends.

On a terminal the screen of `ablate status`, redrawn; in a pipe one line for each trial whose status
changes. SLURM is asked at most once in ten seconds. Ctrl-C ends the watching and nothing else.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.board import Screen, board, cut, screen_of
from ablate.cli.failures import INTERRUPTED
from ablate.cli.overview import counts_line, damages_of, study_status
from ablate.errors import AblateError
from ablate.launch.observe import scheduler_of
from ablate.rundir import StudyDir, find_study

__all__ = ["ended", "main", "watch"]

EXAMPLES = """\
  ablate watch hello
  ablate watch hello | tee hello.log          lines instead of a screen
  ablate watch hello --interval 30
  ablate watch hello --json                   a JSON object a change of status; of a study that has
                                              ended, one a trial
"""

LOOK_SECONDS = 2.0
LONGEST = 86_400
SHARE = 20
"""Looking takes at most one part in so many of the time: a large study is looked at less often."""


def main(argv: Sequence[str]) -> int:
    """0 all ended well, 1 some trial failed, 130 stopped watching."""
    said = "one JSON object a line, for each change of a trial's status"
    parser = reading_parser("watch", description=__doc__ or "", examples=EXAMPLES, json=said)
    parser.add_argument("study", nargs="*", help="a study's name or folder")
    parser.add_argument(
        "--interval", type=float, help="seconds between looks (2; more where large)"
    )
    options = parser.read(argv)
    words = take_runs_dir(options, options.study)
    if len(words) != 1:
        raise AblateError("name one study; `ablate list` shows those on disk.")
    if options.interval is not None and not 0 < options.interval <= LONGEST:
        raise AblateError(
            f"--interval {options.interval:g}: must be in seconds, positive and at most a day."
        )
    study = find_study(words[0], options.runs_dir)
    if not options.json and sys.stdout.isatty():
        show: Callable[[dict[str, Any]], None] = Redrawn()
    else:
        show = Lines(options.json)
    try:
        status = watch(study, show, options.interval)
    except KeyboardInterrupt:
        print("No longer watching; the study goes on.", file=sys.stderr)
        return INTERRUPTED
    counts = status["counts"]
    return 1 if counts["failed"] or counts["cancelled"] or damages_of(status["trials"]) else 0


def watch(
    study: StudyDir, show: Callable[[dict[str, Any]], None], interval: float | None = None
) -> dict[str, Any]:
    """Shows the status again and again; returns that at the study's end."""
    scheduler = scheduler_of(study)
    while True:
        if scheduler is None:
            scheduler = scheduler_of(study)  # it may be submitted while we watch
        began = time.process_time()
        status = study_status(study, scheduler)
        show(status)
        if ended(status):
            return status
        time.sleep(interval or max(LOOK_SECONDS, SHARE * (time.process_time() - began)))


def ended(status: dict[str, Any]) -> bool:
    counts = status["counts"]
    return not counts["running"] + counts["pending"] + counts["preempted"]


class Redrawn:
    """The screen of `status`, over and over in the same place."""

    def __init__(self) -> None:
        self._lines = 0

    def __call__(self, status: dict[str, Any]) -> None:
        size = shutil.get_terminal_size()
        room = max(3, size.lines - 2)
        screen = Screen(size.columns - 1, screen_of(sys.stdout).colour, room)
        lines = board(status, screen)
        if len(lines) > room:
            left = f"... and {len(lines) - room + 1} more lines: a taller window, or ablate status"
            lines = [*lines[: room - 1], cut(left, screen.width)]
        lines.append(screen.paint(time.strftime("%H:%M:%S, Ctrl-C stops watching"), "dim"))
        back = f"\x1b[{self._lines}A" if self._lines else ""
        text = "".join(f"\x1b[2K{line}\n" for line in lines)
        sys.stdout.write(f"{back}\r{text}\x1b[J")
        sys.stdout.flush()
        self._lines = len(lines)


class Lines:
    """What changed since the last look."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._known: dict[str, tuple[Any, ...]] = {}
        self._counts: dict[str, int] = {}
        self._damages: set[str] = set()

    def __call__(self, status: dict[str, Any]) -> None:
        first = not self._known
        for said in damages_of(status["trials"]):
            if said not in self._damages:
                print(f"ablate watch: {said}", file=sys.stderr, flush=True)
        self._damages = set(damages_of(status["trials"]))
        for trial in status["trials"]:
            now = (trial["status"], trial["attempt"])
            if self._known.get(trial["id"]) == now:
                continue
            self._known[trial["id"]] = now
            quiet = first and trial["status"] in ("pending", "done")
            if quiet and not (self._json and ended(status)):
                continue  # nobody wants a thousand lines to begin with
            print(json.dumps(trial) if self._json else _line(trial), flush=True)
        if status["counts"] != self._counts:
            self._counts = status["counts"]
            if not self._json:
                print(f"{status['study']}: {counts_line(self._counts)}", flush=True)


def _line(trial: dict[str, Any]) -> str:
    where = f" on {trial['node']}" if trial["node"] and trial["status"] == "running" else ""
    reason = f": {trial['reason']}" if trial["reason"] else ""
    step = f"step {trial['step']} of {trial['steps']}"
    return f"{trial['id']} {trial['status']}{where}, {step}, attempt {trial['attempt']}{reason}"
