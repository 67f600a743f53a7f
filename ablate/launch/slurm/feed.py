"""The job that goes on without a client: it submits what was held back, and what was lost."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.launch import budget
from ablate.launch.notify import tell_if_over
from ablate.launch.slurm.holds import Holds
from ablate.launch.slurm.identity import this_job
from ablate.launch.slurm.scheduler import Scheduler
from ablate.rundir import ENDED, LEASE_SECONDS, StudyDir, TrialDir, incidents

__all__ = ["Feed"]

log = logging.getLogger("ablate")

LOOK_SECONDS = 2.0


@dataclass(kw_only=True)
class Feed:
    """Pickled by submitit; called on a node when the arrays before it are over."""

    study: str
    clusters: dict[str, dict[str, Any]]
    """Trial id -> what it asks for."""
    common: dict[str, Any]
    again: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Trials that were never submitted."""
    heals: int = 0
    """Rounds without anything to feed and without progress."""
    reached: int = 0
    """Steps of all trials together, when the last round began."""

    def __call__(self) -> str:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        study, job = StudyDir(Path(self.study)), this_job()
        try:
            self._wait_for_leases(study)
            return self._feed(study)
        finally:
            tell_if_over(study, ours=job and job.job_id)

    def _wait_for_leases(self, study: StudyDir) -> None:
        """Of a node that has just died: SLURM is done with its jobs, and their trials still count
        as running. One that really runs (only its slurmd died) is left alone afterwards.
        """
        jobs = study.jobs_of_trials()
        known = Scheduler().jobs(set(jobs.values()))
        over = [study.trial(id) for id in self.clusters
                if not ((job := known.get(jobs.get(id, ""))) and job.active)]  # fmt: skip
        deadline = time.monotonic() + LEASE_SECONDS + 10
        while any(t.live_state().status == "running" for t in over):
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)

    def _feed(self, study: StudyDir) -> str:
        from ablate.launch.slurm.arrays import submit_more
        from ablate.launch.slurm.submit import describe

        with study.lock(name=".submit.lock", stale=180.0):
            if incidents.held(study.path):
                return "the study is held back"
            if spent := budget.exhausted(study):
                return f"held: {spent}"
            scheduler = Scheduler()
            open_ = self._open(study, scheduler)
            reached = sum(study.trial(id).live_state().step for id in self.clusters)
            heals = 0 if self.waiting or reached > self.reached else self.heals + 1
            most = max((c["max_retries"] for c in self.clusters.values()), default=0)
            if not open_ or heals > most:
                return f"{len(open_)} trials are left"
            clusters = {id: ClusterConfig(**self.clusters[id]) for id in open_}
            request = describe(
                study,
                [study.trial(id) for id in open_],
                next(iter(clusters.values())),
                clusters=clusters,
                again=self.again,
                scheduler=scheduler,
            )
            again = self.again if self.waiting else ()
            made = submit_more(
                study, request, self.common, again=again, heals=heals, reached=reached
            )
            return ", ".join(f"{s.kind} {s.job_id}" for s in made) or "nothing to submit"

    def _open(self, study: StudyDir, scheduler: Scheduler) -> list[str]:
        """What has neither ended nor been taken out of the queue by hand."""
        jobs = study.jobs_of_trials()
        known = scheduler.jobs(set(jobs.values()))
        Holds().release(known.values())
        found = []
        for id in self.clusters:
            trial = study.trial(id)
            state = trial.live_state()
            info = known.get(jobs.get(id, ""))
            if state.status in ENDED and not (id in self.waiting and state.status in self.again):
                continue
            if trial.cancel_asked():
                continue
            if info is not None and info.state == "CANCELLED":
                self._cancelled(trial)
                continue
            found.append(id)
        return found

    @staticmethod
    def _cancelled(trial: TrialDir) -> None:
        """Scancel may kill a trial before it can say that it was cancelled."""
        attempt, state = trial.newest_attempt(), trial.live_state()
        if attempt is not None and state.status == "preempted":
            reason = "cancelled with scancel"
            attempt.release(state.replace(status="cancelled", outcome="cancelled", reason=reason))
