"""What one task of an array does: runs its trials, says honestly how that ended, and asks for
exactly one requeue where it must go on.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.errors import LostProcessError, TrialEndedError, TrialError, TrialHeldError
from ablate.launch import budget
from ablate.launch.admission import CLUSTER
from ablate.launch.affinity import confined_cores
from ablate.launch.job import FencedOffError, run_job
from ablate.launch.local import run_missing
from ablate.launch.notify import tell_if_over
from ablate.launch.pool import Pool
from ablate.launch.processes import follow, leading
from ablate.launch.ranks import rank_of
from ablate.launch.runner import RUNNER, load_runner
from ablate.launch.slurm import ending
from ablate.launch.slurm.identity import END, SlurmJob, this_job
from ablate.launch.slurm.scheduler import base_id, run_slurm
from ablate.launch.slurm.source import check_source
from ablate.launch.slurm.states import NOT_NOW
from ablate.launch.stacks import Stacks
from ablate.launch.stop import heard
from ablate.launch.together import on_its_seat
from ablate.rundir import ENDED, LEASE_SECONDS, State, StudyDir, TrialDir, incidents

__all__ = ["Task", "TrialsFailedError"]

log = logging.getLogger("ablate")

HELD_SECONDS = LEASE_SECONDS + 10

LOOK_SECONDS = 2.0
"""A free slot looks for another task's trials this often, while it finds none."""


class TrialsFailedError(TrialError):
    """So that SLURM says FAILED, and `afterok` does not start."""


@dataclass(kw_only=True)
class Task:
    """Pickled by submitit; called on the node."""

    study: str
    trials: list[str]
    cluster: dict[str, Any] = field(default_factory=dict)
    source: str | None = None
    """The frozen code, relative to the study."""
    runner: str = RUNNER
    again: tuple[str, ...] = ()
    """Ended statuses that the first start of the job runs again."""

    def __call__(self) -> str:
        """Returns for exit code 0: every trial ended well, or the job starts again.

        Raises:
            TrialsFailedError: where a trial failed (exit code 1).
            SystemExit: with NOT_NOW.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if rank_of().rank > 0:
            if follow(patient=True):
                raise LostProcessError("see the log of the first process of the trial")
            return "followed the first process"
        with leading():
            return self._lead()

    def _lead(self) -> str:
        job = this_job()
        assert job is not None
        cluster = ClusterConfig(**self.cluster)
        os.environ[CLUSTER] = json.dumps(self.cluster)
        os.environ[END] = str(time.time() + 60 * cluster.minutes)
        study = StudyDir(Path(self.study))
        if self.source is not None:
            check_source(study.path / self.source)
        reason = incidents.held(study.path)
        if reason is not None:
            raise TrialsFailedError(f"held back: {reason['reason']} ({reason['log']})")
        if spent := budget.exhausted(study):
            log.warning("held: %s", spent)
            raise SystemExit(NOT_NOW)
        again = self.again if job.restart == 0 else ()
        trials = [study.trial(id) for id in self.trials]
        try:
            if cluster.pack == 1 and len(trials) == 1:
                self._run_one(trials[0], cluster, again)
                stopped = heard()
            else:
                stopped = self._run_packed(study, trials, cluster, again, job)
            if budget.exhausted(study) and any(t.live_state().status not in ENDED for t in trials):
                raise SystemExit(NOT_NOW)
            return conclude(study, trials, cluster, job, stopped)
        finally:
            tell_if_over(study)

    def _run_one(self, trial: TrialDir, cluster: ClusterConfig, again: Sequence[str]) -> None:
        run = on_its_seat(cluster.stack, load_runner(self.runner))
        deadline = time.monotonic() + HELD_SECONDS
        while True:
            try:
                run_job(trial, again=again, run=run)
            except TrialHeldError as error:
                if heard():
                    return
                if time.monotonic() > deadline:
                    log.warning("%s", error)
                    raise SystemExit(NOT_NOW) from None
                time.sleep(2.0)
                continue
            except TrialEndedError:
                pass
            except FencedOffError:
                raise SystemExit(NOT_NOW) from None
            return

    def _run_packed(
        self,
        study: StudyDir,
        trials: list[TrialDir],
        cluster: ClusterConfig,
        again: Sequence[str],
        job: SlurmJob,
    ) -> str | None:
        looked, given = -LOOK_SECONDS, {t.id for t in trials}
        stacks = Stacks.of(trials, cluster.stack)

        def more(room: int | None = None) -> list[TrialDir]:
            """Looks anew each time: the submission may be recorded after the job has started."""
            nonlocal looked
            if time.monotonic() - looked < LOOK_SECONDS:
                return []
            for task in reversed(_tasks(study, job)):
                free = {id for id in task if id not in given and _is_untouched(study, id)}
                if not free:
                    continue
                theirs = Stacks.of(map(study.trial, task), cluster.stack)
                for group in reversed(theirs.groups(task)):
                    if free.issuperset(group) and (room is None or len(group) <= room):
                        stacks.include(theirs)
                        given.update(group)
                        return list(map(study.trial, group))
            looked = time.monotonic()
            return []

        with Pool(self.runner) as pool:
            return run_missing(
                trials,
                pool,
                workers=cluster.pack,
                places=cluster.pack,
                cores=confined_cores(os.environ),
                stacks=stacks,
                gpus=range(pool.gpus()),
                again=again,
                patience=HELD_SECONDS,
                more=more,
                hold=lambda: budget.exhausted(study),
            )


def conclude(
    study: StudyDir,
    trials: Sequence[TrialDir],
    cluster: ClusterConfig,
    job: SlurmJob,
    stopped: str | None = None,
) -> str:
    """What the job as a whole has come to; see `Task.__call__`.

    Args:
        study: the trials' own.
        trials: those that the job was submitted for.
        cluster: what it was submitted with.
        job: this one.
        stopped: the signal that ended it, perhaps before it had a trial to save.
    """
    ours = [t.id for t in trials]
    if cluster.pack > 1:  # else nobody takes another's, and no task need read a thousand states
        ours = list(dict.fromkeys([*ours, *_taken(study, job)]))
    states = {id: study.trial(id).live_state() for id in ours}
    open_ = {id: s for id, s in states.items() if s.status not in ENDED}
    mine = {
        id: s for id, s in open_.items() if s.status == "preempted" and _is_mine(study, id, job)
    }
    if mine:
        return _go_on(study, mine, cluster, job)
    if open_:
        if stopped and not any(s.status == "running" for s in open_.values()):
            return _go_on(study, {}, cluster, job, stopped)
        elsewhere = ", ".join(f"{id} ({s.status})" for id, s in list(open_.items())[:3])
        if all(base_id(s.job_id or "") == base_id(job.job_id) for s in open_.values()):
            return f"run by other tasks of the array: {elsewhere}"
        log.warning("not ended, and not ours to run: %s", elsewhere)
        raise SystemExit(NOT_NOW)
    bad = {id: s for id, s in states.items() if s.status in ("failed", "cancelled")}
    if incidents.held(study.path):
        _cancel_waiting(study)
    if bad:
        raise TrialsFailedError("; ".join(f"{id}: {s.reason}" for id, s in bad.items()))
    return f"{len(states)} ended"


def _go_on(
    study: StudyDir,
    mine: dict[str, State],
    cluster: ClusterConfig,
    job: SlurmJob,
    signal: str | None = None,
) -> str:
    """Finds out why the trials were stopped, says so in their states, and has the job requeued."""
    sick = [s for s in mine.values() if s.outcome == "node"]
    if sick and len(sick) == len(mine):
        time.sleep(min(60.0, 5.0 * 2**job.restart))  # a full disk is not empty at once
    told = next((s.reason for s in mine.values()), signal)
    end = ending.judge(
        ending.ask(job.raw_id),
        signal=told or "stopped",
        restart=job.restart,
        now=time.time(),
        end=job.end,
        grace=cluster.grace,
    )
    log.info("%s", end)
    for id, state in mine.items():
        attempt = study.trial(id).newest_attempt()
        if attempt is not None and state.outcome == "preempted":
            attempt.release(
                state.replace(status=end.status, outcome=end.outcome, reason=end.reason)
            )
    if end.status == "cancelled":
        raise TrialsFailedError(end.reason)
    if end.requeue and not ending.requeue(job.raw_id):
        log.warning("SLURM would not requeue the job; launch the study again")
        raise SystemExit(NOT_NOW)
    if not end.goes_on:
        raise SystemExit(NOT_NOW)
    return end.reason


def _is_mine(study: StudyDir, id: str, job: SlurmJob) -> bool:
    attempt = study.trial(id).newest_attempt()
    return attempt is not None and job.made(attempt.record())


def _tasks(study: StudyDir, job: SlurmJob) -> list[list[str]]:
    """Trials of each task of this array."""
    array = base_id(job.job_id)
    return next((s.tasks for s in study.submissions() if s.job_id == array), [])


def _is_untouched(study: StudyDir, id: str) -> bool:
    """Whether nobody has started it: it may be taken by a slot that has become free."""
    trial = study.trial(id)
    return trial.newest_attempt() is None and trial.live_state().status == "pending"


def _taken(study: StudyDir, job: SlurmJob) -> list[str]:
    """Trials of the array that this job has run beside its own."""
    if not os.environ.get("SLURM_ARRAY_JOB_ID"):
        return []
    ids = [id for task in _tasks(study, job) for id in task]
    return [id for id in ids if study.trial(id).state().job_id == job.job_id]


def _cancel_waiting(study: StudyDir) -> None:
    """The canary: what waits in the queue would fail in the same way."""
    arrays = sorted({s.job_id for s in study.submissions()})
    if arrays:
        run_slurm(["scancel", "--state=PENDING", *arrays])
