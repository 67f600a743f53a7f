"""Mirrors one attempt to wandb, in a process of its own (arguments: TRIAL N MODE STATUS).

Online it follows metrics.jsonl until its standard input says how the trial ended (or breaks off:
the trial was killed), and resumes the same run at every attempt. Offline, or where the server was
never reached, it writes one run from the whole stitched record.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.rundir import ENDED, Attempt, TrialDir
from ablate.rundir.names import METRICS
from ablate.track.client import (
    CONNECTED,
    end_run,
    last_step_of,
    log_rows,
    mark_online,
    only_writer,
    start_run,
)
from ablate.track.facts import facts_of, summary_of
from ablate.track.offline import rebuild

__all__ = ["follow"]

POLL_SECONDS = 0.5
EARLIER_SECONDS = 60.0
"""An earlier attempt's mirror that is still sending is waited for."""


def follow(attempt: Attempt) -> None:
    """Sends what earlier attempts recorded, as far as wandb lacks it, then what this one writes."""
    trial = attempt.trial
    facts = facts_of(trial)
    run = start_run(facts, mode="online", folder=trial.path)
    mark_online(trial, run)
    say(f"{CONNECTED}{run.url}")
    sent, _ = log_rows(run, trial.stitched(), last_step_of(run))
    tail, status = Tail(attempt.path / METRICS), None
    while status is None:
        status = _status_on_stdin()
        sent, _ = log_rows(run, tail.rows(), sent)
    try:
        end_run(run, summary_of(trial, status, {}), status)
    except TimeoutError:
        say("the server did not take everything in time; `ablate sync` sends the rest")


class Tail:
    """The complete lines that were added to a log since the last call."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def rows(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "step" in row:
                yield row


def _status_on_stdin() -> str | None:
    """How the trial ended, once that is known; a broken pipe means that it was killed."""
    if not select.select([0], [], [], POLL_SECONDS)[0]:
        return None
    return os.read(0, 100).decode().strip() or "preempted"


def say(text: str) -> None:
    """To wandb.log."""
    print(text, flush=True)  # noqa: T201


def main(argv: list[str]) -> None:
    with contextlib.suppress(OSError):
        os.nice(19)  # the training comes first
    if "SLURM_JOB_ID" in os.environ:
        for number in (signal.SIGTERM, signal.SIGUSR2):  # SLURM warns every process of a step
            signal.signal(number, signal.SIG_IGN)
    attempt = Attempt(TrialDir(Path(argv[0])), int(argv[1]))
    trial, mode, status = attempt.trial, argv[2], argv[3] or None
    with only_writer(trial, wait=EARLIER_SECONDS) as alone:
        if not alone:
            say("another process mirrors this trial; `ablate sync` sends what it leaves")
            return
        if mode == "online":
            try:
                follow(attempt)
                return
            except Exception as error:
                say(f"wandb cannot be reached ({error}); `ablate sync` can send the run later")
                while status is None:
                    status = _status_on_stdin()
        if status in ENDED:
            rebuild(trial, status)


if __name__ == "__main__":
    began = time.monotonic()
    main(sys.argv[1:])
    say(f"mirrored in {time.monotonic() - began:.1f} s")
