"""A study on this machine: what is missing runs in several processes, and nothing runs twice."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ablate.launch.affinity import share
from ablate.launch.forks import CRASHED, HELD
from ablate.launch.pool import Ended, Pool
from ablate.launch.slurm.identity import this_job
from ablate.launch.stacks import Stacks
from ablate.launch.stop import Stop
from ablate.rundir import ENDED, State, TrialDir
from ablate.rundir.files import time_of

__all__ = ["Quiet", "Study", "Watcher", "run_missing", "workers_for"]

RESTARTS = 2
"""A trial whose process was killed (for want of memory, say) is started again so often."""

FULL = 2**16
"""Bytes left on a disk where a trial cannot even write how it ended."""

LOOK_SECONDS = 1.0
"""Trials that another launch runs are looked at this often."""


class Watcher(Protocol):
    """Shows what happens."""

    def started(self, trial: TrialDir) -> None: ...
    def ended(self, trial: TrialDir, state: State) -> None: ...
    def waiting(self, trials: Sequence[TrialDir]) -> None:
        """Another launch runs these."""

    def stopping(self, reason: str) -> None: ...
    def tick(self, running: Sequence[TrialDir]) -> None:
        """Called several times a second."""


class Quiet:
    """Shows nothing."""

    def started(self, trial: TrialDir) -> None: ...
    def ended(self, trial: TrialDir, state: State) -> None: ...
    def waiting(self, trials: Sequence[TrialDir]) -> None: ...
    def stopping(self, reason: str) -> None: ...
    def tick(self, running: Sequence[TrialDir]) -> None: ...


@dataclass
class Study:
    """How a launch stands."""

    queue: deque[TrialDir]
    elsewhere: list[TrialDir] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None


def workers_for(wanted: int | None, threads: int, gpus: int) -> int:
    """Trials at once: as asked, else one a GPU, else CPU cores over the threads of a trial."""
    if wanted is not None:
        return wanted
    return gpus or max(1, cores() // threads)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_missing(
    trials: Sequence[TrialDir],
    pool: Pool,
    *,
    workers: int,
    places: int | None = None,
    gpus: Sequence[int] = (),
    cores: Sequence[int] = (),
    again: Collection[str] = (),
    watcher: Watcher | None = None,
    patience: float = math.inf,
    more: Callable[[int | None], Sequence[TrialDir]] = lambda room: (),
    hold: Callable[[], str | None] = lambda: None,
    stacks: Stacks | None = None,
) -> str | None:
    """Runs every trial that has not ended; a failing one never stops the others.

    Trials that another launch runs are waited for, and taken over if it dies.

    Args:
        trials: in the order in which they start.
        pool: what runs them.
        workers: processes at once.
        places: trials at once, where several of them may share a process; None: any number.
        gpus: shared out one a worker.
        cores: CPU cores to be shared out, so that each worker is confined to some; none: it is not.
        again: ended statuses that are run once more.
        watcher: shows it.
        patience: seconds that trials which another launch runs are waited for with nothing to do.
        more: asked for further trials, at most so many, when a worker has none.
        hold: why nothing more is to be started, or None.
        stacks: trials that start together, in one process.

    Returns:
        Why it was stopped before the end, or None.
    """
    watcher, stacks = watcher or Quiet(), stacks or Stacks()
    study = Study(queue=deque(t for t in trials if _to_do(t.live_state(), again)))
    stop, looked, shown_waiting = Stop(patient=this_job() is not None), 0.0, False
    busy = time.monotonic()
    stop.stepping = True
    with stop.listening():
        try:
            while pool.running or (not study.stopped and (study.queue or study.elsewhere)):
                if stop.reason and not study.stopped:
                    study.stopped = stop.reason
                    watcher.stopping(stop.reason)
                    pool.stop()
                if study.queue and hold():
                    study.queue.clear()
                while pool.processes < workers and not study.stopped:
                    room = None if places is None else places - len(pool.running)
                    study.queue.extend([] if study.queue or room == 0 else more(room))
                    trial = _next(study, pool, room, stacks)
                    if trial is None:
                        break
                    _start(study, trial, pool, gpus, (cores, places or workers), again, watcher,
                           stacks)  # fmt: skip
                if pool.running:
                    busy = time.monotonic()
                elif time.monotonic() - busy > patience:
                    break
                for end in pool.wait(0.2):
                    _take(study, pool, end, watcher)
                if study.elsewhere and time.monotonic() - looked > LOOK_SECONDS:
                    looked = time.monotonic()
                    if not shown_waiting and not pool.running and not study.queue:
                        watcher.waiting(study.elsewhere)
                        shown_waiting = True
                    _look_elsewhere(study, watcher)
                watcher.tick([TrialDir(Path(path)) for path in pool.running])
        except KeyboardInterrupt:  # asked a second time
            study.stopped = stop.reason
            pool.stop()
            deadline = time.monotonic() + 10
            while pool.running and time.monotonic() < deadline:
                for end in pool.wait(0.2):
                    watcher.ended(end.trial, end.trial.live_state())
    return study.stopped


def _to_do(state: State, again: Collection[str]) -> bool:
    return state.status not in ENDED or state.status in again


def _next(study: Study, pool: Pool, room: int | None, stacks: Stacks) -> TrialDir | None:
    """The first of the queue for which (and for whose stack) there is room."""
    for trial in study.queue:
        fits = room is None or 1 + len(stacks.mates(trial, study.queue)) <= room
        if fits or not pool.running:
            study.queue.remove(trial)
            return trial
    return None


def _start(
    study: Study,
    trial: TrialDir,
    pool: Pool,
    gpus: Sequence[int],
    shared: tuple[Sequence[int], int],
    again: Collection[str],
    watcher: Watcher,
    stacks: Stacks,
) -> None:
    """`shared`: CPU cores, and among how many trials at once."""
    state = trial.live_state()
    if state.status == "running":
        study.elsewhere.append(trial)
    elif _to_do(state, again):
        used = list(pool.running.values())
        gpu = min(gpus, key=used.count) if gpus else None
        together = [trial]
        for mate in stacks.mates(trial, list(study.queue)):
            state = mate.live_state()
            if state.status != "running" and _to_do(state, again):
                study.queue.remove(mate)
                together.append(mate)
        taken = [core for cores in pool.cores.values() for core in cores]
        cores = share(shared[0], taken, len(together), shared[1])
        pool.start(together, seats=stacks.seats(trial), again=again, gpu=gpu, cores=cores)
        for started in together:
            watcher.started(started)
    else:
        watcher.ended(trial, state)


def _take(study: Study, pool: Pool, end: Ended, watcher: Watcher) -> None:
    """What the end of a child means for its trial."""
    trial, state = end.trial, end.trial.live_state()
    if end.code == HELD:
        study.elsewhere.append(trial)
        return
    if end.code == CRASHED and state.status not in ENDED:
        reason = _last_line(pool.errors())
        if trial.path.exists() and shutil.disk_usage(trial.path).free < FULL:
            reason = f"the disk of {trial.path} is full; {reason}"
        state = state.replace(status="failed", outcome="code", reason=reason)
    lost = state.status == "preempted" and state.outcome == "node"
    if lost and not study.stopped and study.restarts[trial.id] < RESTARTS:
        study.restarts[trial.id] += 1
        study.queue.appendleft(trial)
    watcher.ended(trial, state)


def _look_elsewhere(study: Study, watcher: Watcher) -> None:
    now = time_of(study.elsewhere[0].study_path)  # as the files are dated, wherever they lie
    for trial in list(study.elsewhere):
        state, newest = trial.live_state(now), trial.newest_attempt()
        if state.status == "running":
            if newest is not None:
                newest.redate(now)
            continue
        study.elsewhere.remove(trial)
        if state.status in ENDED:
            watcher.ended(trial, state)
        else:
            study.queue.append(trial)


def _last_line(text: str) -> str:
    return text.splitlines()[-1] if text else "its process ended without a word."
