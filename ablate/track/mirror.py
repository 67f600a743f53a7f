"""Mirrors one attempt to wandb, in a process of its own (arguments: TRIAL N MODE STATUS).

Online it follows metrics.jsonl until its standard input says how the trial ended (or breaks off:
the trial was killed), and resumes the same run at every attempt. Offline, or where the server
cannot be reached, it writes one run from the whole stitched record.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.rundir import ENDED, Attempt, TrialDir
from ablate.rundir.names import METRICS
from ablate.track.facts import facts_of

__all__ = ["follow", "rebuild"]

INIT_SECONDS, FINISH_SECONDS, POLL_SECONDS = 20.0, 6.0, 0.5


def rebuild(trial: TrialDir, status: str) -> None:
    """One offline run with the stitched record; an earlier one of this trial is replaced."""
    for old in (trial.path / "wandb").glob(f"offline-run-*-{facts_of(trial).id}"):
        shutil.rmtree(old)
    run = _init(trial, "offline")
    for row in trial.stitched():
        run.log(row, step=row["step"])
    _finish(run, trial, status)


def follow(attempt: Attempt) -> None:
    """Sends what earlier attempts recorded, as far as wandb lacks it, then what this one writes."""
    trial = attempt.trial
    run = _init(trial, "online")
    sent = max(0, run.starting_step - 1)
    for row in trial.stitched():
        if row["step"] > sent:
            run.log(row, step=row["step"])
            sent = row["step"]
    tail, status = Tail(attempt.path / METRICS), None
    while status is None:
        status = _status_on_stdin()
        for row in tail.rows():
            if row["step"] > sent:
                run.log(row, step=row["step"])
                sent = row["step"]
    _finish(run, trial, status)


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
                yield json.loads(line)
            except ValueError:
                continue


def _status_on_stdin() -> str | None:
    """How the trial ended, once that is known; a broken pipe means that it was killed."""
    if not select.select([0], [], [], POLL_SECONDS)[0]:
        return None
    return os.read(0, 100).decode().strip() or "preempted"


def _init(trial: TrialDir, mode: str) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    facts, track = facts_of(trial), trial.config()["track"]
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,  # without it a dead server holds finish() for ever
    )
    run = wandb.init(
        project=track["project"],
        entity=track["entity"],
        id=facts.id,
        name=facts.name,
        group=facts.group,
        job_type=facts.arm[:64],
        tags=facts.tags,
        config=facts.config,
        dir=str(trial.path),
        mode="online" if mode == "online" else "offline",
        resume="allow" if mode == "online" else None,
        settings=settings,
    )
    run.define_metric("tokens")
    run.define_metric("*", step_metric="tokens")
    return run


def _finish(run: Any, trial: TrialDir, status: str) -> None:
    summary = trial.summary() or {}
    run.summary.update({**summary, "status": status})
    if status == "preempted":
        run.mark_preempting()
    run.finish(exit_code=0 if status == "done" else 1)


def main(argv: list[str]) -> None:
    attempt = Attempt(TrialDir(Path(argv[0])), int(argv[1]))
    if argv[2] == "offline":
        rebuild(attempt.trial, argv[3])
        return
    try:
        follow(attempt)
    except Exception as error:
        print(f"wandb cannot be reached ({error}); `wandb sync` can send the run later")  # noqa: T201
        status = None
        while status is None:
            status = _status_on_stdin()
        if status in ENDED:
            rebuild(attempt.trial, status)


if __name__ == "__main__":
    began = time.monotonic()
    main(sys.argv[1:])
    print(f"mirrored in {time.monotonic() - began:.1f} s")  # noqa: T201 (to wandb.log)
