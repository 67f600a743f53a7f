"""Trials to a server: each run is continued behind the last step that the server has.

So a mirror that followed the trial live, a `sync` that was killed, and this one add up to one run
with each step once. What the server shows at the end is asked for, not assumed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.errors import TrackError
from ablate.rundir import ENDED, TrialDir, read_jsonl
from ablate.rundir.names import METRICS
from ablate.track.client import (
    end_run,
    last_step_of,
    log_rows,
    mark_online,
    only_writer,
    start_run,
    told,
)
from ablate.track.copies import Task
from ablate.track.facts import RECORD, rows_of
from ablate.track.offline import offline_runs
from ablate.track.remote import Held, held_runs

__all__ = ["check_shown", "held_of", "send"]

FINISH_SECONDS = 120.0
SHOWN_SECONDS = 10.0
"""A server may show a summary a little later than it took it."""


def held_of(tasks: Sequence[Task]) -> Held:
    """The runs that the server has of these trials, with their summaries."""
    held: Held = {}
    for place in dict.fromkeys((task.entity, task.project, task.facts.group) for task in tasks):
        held |= held_runs(*place)
    return held


def send(task: Task, held: Mapping[str, Any] | None) -> None:
    """Sends what the server lacks.

    Args:
        task: a trial that has begun.
        held: the summary that the server has of it; None: there is no such run.

    Raises:
        AblateError: where the server refuses.
        TrackError: where it is away, or does not take the whole in time.
    """
    done, trial = task.done, task.trial
    with only_writer(trial) as alone:
        if not alone:
            done.action, done.reason = "skipped", "it is being mirrored live"
            return
        record = task.record()
        if held is not None and held.get(RECORD) == record:
            done.action = "unchanged"
            return
        # wandb's own files: the study may lie where nothing can be written.
        with tempfile.TemporaryDirectory(prefix="ablate-sync-", ignore_cleanup_errors=True) as made:
            _send_rows(task, Path(made), record)
        for left in offline_runs(trial, task.facts):  # else `wandb sync` would send it twice
            shutil.rmtree(left, ignore_errors=True)
        done.superseded = _superseded(trial)


def _send_rows(task: Task, folder: Path, record: str) -> None:
    done, trial = task.done, task.trial
    try:
        run = start_run(
            task.facts,
            mode="online",
            folder=folder,
            project=task.project,
            entity=task.entity,
            finish_seconds=FINISH_SECONDS,
        )
    except Exception as error:
        raise told(error) from None
    mark_online(trial, run)
    done.url, existed = run.url, bool(run.resumed)
    _, done.rows = log_rows(run, rows_of(trial), last_step_of(run))
    try:
        end_run(run, {**task.summary(), RECORD: record}, done.status)
    except TimeoutError:
        raise TrackError(
            f"wandb's server did not take the whole of {trial.id} in {FINISH_SECONDS:.0f} s. Run "
            "the same command again, it goes on where it stopped."
        ) from None
    done.action = "created" if not existed else "continued" if done.rows else "updated"


def _superseded(trial: TrialDir) -> int:
    """Steps that a cut-short attempt recorded with another loss than the record that counts.

    A live mirror may have sent them, and wandb takes no row back. On one kind of device there are
    none: a trial goes on bit for bit.
    """
    pieces = trial.lineage()
    if len(pieces) < 2:
        return 0
    counted = {row["step"]: row.get("train/loss") for row in trial.stitched()}
    differing = 0
    for attempt, _, end in pieces:
        for row in read_jsonl(attempt.path / METRICS):
            step = row.get("step", 0)
            if step > end and step in counted and row.get("train/loss") != counted[step]:
                differing += 1
    return differing


def check_shown(tasks: Sequence[Task]) -> None:
    """Asks the server whether it shows every record that was sent.

    Raises:
        TrackError: where it does not, of trials that have ended.
    """
    sent = {t.facts.id: t for t in tasks if t.done.action in ("created", "continued", "updated")}
    if not sent:
        return
    wanted = {id: task.record() for id, task in sent.items()}
    deadline = time.monotonic() + SHOWN_SECONDS
    while True:
        held = held_of(list(sent.values()))
        missing = {id for id in sent if (held.get(id) or {}).get(RECORD) != wanted[id]}
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(1)
    # A trial that was being trained meanwhile has moved on; that is no loss.
    missing = {id for id in missing if sent[id].done.status in ENDED}
    if missing:
        one = sent[next(iter(missing))].trial.id
        raise TrackError(
            f"wandb's server does not show {len(missing)} of {len(sent)} runs whole yet (for "
            f"example {one}). Run the same command again in a while: it sends what is missing."
        )
