"""The jobs of a multirun on SLURM: submitted all at once, then only watched."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate.cli.multirun_launchers import Asked, command
from ablate.cli.multirun_patience import Patience, Resubmission
from ablate.config.schema import ClusterConfig
from ablate.launch.retrying import RETRIED, reopen
from ablate.launch.slurm.holds import Holds
from ablate.launch.slurm.states import IN_QUEUE
from ablate.rundir import ENDED, StudyDir, TrialDir

if TYPE_CHECKING:
    from ablate.launch.observe import Scheduler
    from ablate.launch.trial_view import TrialView

__all__ = ["show_request", "submit", "wait"]

LOOK_SECONDS = 1.0
"""The files are looked at so often; SLURM itself is asked seldom, by `Scheduler`."""
QUIET_SECONDS = 60.0
"""Without a terminal the counts are printed at most so often."""


def submit(study: StudyDir, missing: Sequence[Asked]) -> None:
    """Hands every trial to SLURM that it has not got yet; shows what it is about to ask for.

    Raises:
        StudyError: where SLURM refuses, or does not answer.
    """
    from ablate.launch.slurm.submit import describe, submit

    trials, clusters = _asked_for(missing)
    if not trials:
        return
    first = clusters[trials[0].id]
    request = describe(study, trials, first, clusters=clusters, again=RETRIED)
    print(request.text(), file=sys.stderr, flush=True)
    for trial in trials:
        if trial.live_state().status in RETRIED:
            reopen(trial)
    made = submit(study, trials, first, command=command(), clusters=clusters, again=RETRIED)
    jobs = ", ".join(s.job_id for s in made if s.kind == "trials")
    print(f"Submitted as {jobs or 'nothing new'}. {_advice(study)}", file=sys.stderr, flush=True)


def _asked_for(missing: Sequence[Asked]) -> tuple[list[TrialDir], dict[str, ClusterConfig]]:
    trials = [a.trial for a in missing if a.trial is not None]
    clusters = {a.trial.id: ClusterConfig(**(a.cluster or {})) for a in missing if a.trial}
    return trials, clusters


def wait(study: StudyDir, asked: Sequence[Asked]) -> None:
    """Until every trial has ended, or nobody runs it any more (`Asked.left` says why). What SLURM
    has forgotten is submitted again.
    """
    from ablate.launch.observe import scheduler_of, study_view

    by_id: dict[str, list[Asked]] = {}
    for a in asked:
        if a.trial is not None:
            by_id.setdefault(a.trial.id, []).append(a)
    scheduler, board, patience, holds = scheduler_of(study), Board(study), Patience(), Holds()
    again = Resubmission(study, _asked_for(asked)[1])
    try:
        while True:
            views = [v for v in study_view(study, scheduler) if v.id in by_id]
            if scheduler is not None:
                jobs = {v.job_id for v in views if v.job_id and v.status not in ENDED}
                holds.release(scheduler.jobs(jobs).values())
            board.show(views)
            open_ = [v for v in views if v.status not in ENDED]
            feeder = _feeder(study, scheduler) if open_ else None
            answers = scheduler is not None and scheduler.answered()
            left = {v.id: patience.over(v, answers, feeder) for v in open_}
            given_up = [v for v in open_ if left[v.id]]
            if said := again.submit(views, given_up, feeder):
                board.clear()
                print(said, file=sys.stderr, flush=True)
                patience.forget()
                continue
            for id, reason in left.items():
                for a in by_id[id]:
                    a.left = reason
            if len(given_up) == len(open_):
                break
            time.sleep(LOOK_SECONDS)
    finally:
        board.clear()


def _feeder(study: StudyDir, scheduler: Scheduler | None) -> str | None:
    """SLURM's word for the newest job that submits what was held back or lost."""
    from ablate.launch.assignments import feeders

    found = feeders(study)
    info = scheduler.jobs(found[-1:]).get(found[-1]) if scheduler and found else None
    return None if info is None else info.state


class Board:
    """A line for each trial that ended, and how many stand where."""

    def __init__(self, study: StudyDir) -> None:
        self._study, self._told = study, set[str]()
        self._terminal, self._line, self._at = sys.stderr.isatty(), "", 0.0

    def show(self, views: Sequence[TrialView]) -> None:
        from ablate.cli.watching import story

        for view in views:
            if view.status in ENDED and view.id not in self._told:
                self._told.add(view.id)
                trial = self._study.trial(view.id)
                self.clear()
                done = f"[{len(self._told)}/{len(views)}]"
                print(f"{done} {story(trial, trial.live_state())}", file=sys.stderr, flush=True)
        self._counts(views)

    def clear(self) -> None:
        if self._terminal and self._line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._line = ""

    def _counts(self, views: Sequence[TrialView]) -> None:
        counts = Counter(_word(v) for v in views)
        line = f"{self._study.name}: " + ", ".join(f"{n} {w}" for w, n in sorted(counts.items()))
        steps = sum(v.steps for v in views)
        if steps:
            done = sum(v.steps if v.status in ENDED else v.step for v in views)
            line += f"; {100 * done / steps:.0f} % of all steps"
        if line == self._line:
            return
        if self._terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._at > QUIET_SECONDS or not self._line:
            print(line, file=sys.stderr, flush=True)
            self._at = time.monotonic()
        else:
            return
        self._line = line


def show_request(study: StudyDir, trials: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """What would be asked of SLURM for these trials (id, section `cluster`)."""
    from ablate.launch.slurm.submit import describe_dry

    if not trials:
        return
    clusters = {id: ClusterConfig(**cluster) for id, cluster in trials}
    dirs = [study.trial(id) for id in clusters]
    first = clusters[dirs[0].id]
    request = describe_dry(study, dirs, first, clusters=clusters, again=RETRIED, say=print)
    print(request.text())


def _word(view: TrialView) -> str:
    waits = view.status in ("pending", "preempted")
    return "queued" if waits and view.slurm_state in IN_QUEUE else view.status


def _advice(study: StudyDir) -> str:
    return (
        f"To look: ablate status {study.word}, ablate watch {study.word}. To end them: "
        f"ablate cancel {study.word}. The same command waits for them again."
    )
