"""Hands a study to SLURM and returns: what is missing and not in its queue yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ablate.config.schema import ClusterConfig
from ablate.errors import StudyError
from ablate.launch.runner import RUNNER
from ablate.launch.slurm.arrays import submit_more
from ablate.launch.slurm.holds import Holds
from ablate.launch.slurm.limits import DEFAULT_ARRAY, read_limits
from ablate.launch.slurm.request import Request, check_slurm
from ablate.launch.slurm.request import describe as describe_classes
from ablate.launch.slurm.scheduler import Scheduler
from ablate.launch.slurm.source import freeze_source
from ablate.launch.stacks import Stacks
from ablate.plan.stacking import Stacking
from ablate.rundir import ENDED, StudyDir, Submission, TrialDir, incidents, names

__all__ = ["describe", "describe_dry", "stacked", "submit"]

Clusters = Mapping[str, ClusterConfig]


def describe(
    study: StudyDir,
    trials: Sequence[TrialDir],
    cluster: ClusterConfig,
    *,
    clusters: Clusters | None = None,
    again: Sequence[str] = (),
    scheduler: Scheduler | None = None,
    stacking: Stacking | None = None,
) -> Request:
    """What `submit` with the same arguments would ask for; asks SLURM, and changes nothing.

    Args:
        study: where earlier submissions stand; it need not exist yet.
        trials: those that have ended are left out, unless as one of `again`.
        cluster: what every trial asks for ...
        clusters: ... but these: trial id -> its own.
        again: ended statuses to run again.
        scheduler: asks SLURM.
        stacking: the plan's; None: as the configurations on disk say.

    Raises:
        StudyError: where SLURM does not answer, and could run a trial twice.
    """
    check_slurm()
    limits = read_limits(cluster)
    if limits is None:
        raise StudyError(
            "SLURM's controller does not answer (scontrol show config), so nothing was submitted. "
            "Try again when `squeue` works."
        )
    missing, queued = [], []
    active = queued_trials(study, scheduler or Scheduler())
    for trial in trials:
        state = trial.live_state()
        waits = trial.id in active and not _is_done_with(active[trial.id], trial)
        if waits or state.status == "running":
            queued.append(trial.id)
        elif state.status not in ENDED or state.status in again:
            missing.append(trial.id)
    own = {id: (clusters or {}).get(id, cluster) for id in [*missing, *queued]}
    return stacked(describe_classes(own, limits.array, limits.free, queued), trials, stacking)


def describe_dry(
    study: StudyDir,
    trials: Sequence[TrialDir],
    cluster: ClusterConfig,
    *,
    clusters: Clusters,
    say: Callable[[str], None],
    again: Sequence[str] = (),
    stacking: Stacking | None = None,
) -> Request:
    """As `describe`; where SLURM cannot be asked, without its limits and its queue, and says so."""
    try:
        return describe(study, trials, cluster, clusters=clusters, again=again, stacking=stacking)
    except StudyError as error:
        said = str(error).partition(", so nothing")[0].rstrip(".")
        say(
            f"Note: {said}. So this is what would be asked for, without a look at limits and queue."
        )
        return _describe_alone(trials, clusters, again=again, stacking=stacking)


def _describe_alone(
    trials: Sequence[TrialDir],
    clusters: Clusters,
    *,
    again: Sequence[str] = (),
    stacking: Stacking | None = None,
) -> Request:
    states = {t.id: t.live_state() for t in trials}
    missing = [id for id, s in states.items() if s.status not in ENDED or s.status in again]
    request = describe_classes({id: clusters[id] for id in missing}, DEFAULT_ARRAY)
    return stacked(request, trials, stacking)


def stacked(request: Request, trials: Sequence[TrialDir], stacking: Stacking | None) -> Request:
    """The same, with the members of each stack in one task."""
    by_id = {trial.id: trial for trial in trials}

    def stacks(ids: Sequence[str], size: int | None) -> Stacks:
        return Stacks.of([by_id[id] for id in ids], size, stacking)

    classes = [
        dataclasses.replace(c, stacks=stacks(c.trials, c.cluster.stack)) for c in request.classes
    ]
    return dataclasses.replace(request, classes=classes)


def _is_done_with(job: str, trial: TrialDir) -> bool:
    """Whether a job that SLURM still has brought the trial to its end: a retry at once after a
    failure finds it ending, or with other trials of its pack.
    """
    newest = trial.newest_attempt()
    own = newest.own_state() if newest is not None else None
    if newest is None or own is None:
        return False
    over = own.status in ENDED or own.outcome in ("oom", "code")  # concluded for a dead process
    return over and newest.record().get("job_id") == job


def queued_trials(study: StudyDir, scheduler: Scheduler) -> dict[str, str]:
    """Trial id -> job, of what SLURM still has waiting or running.

    Raises:
        StudyError: where there are submissions and SLURM does not answer.
    """
    jobs = study.jobs_of_trials()
    if not jobs:
        return {}
    known = scheduler.jobs(set(jobs.values()))
    if not scheduler.answered():
        raise StudyError(
            f"The study {study.name} has jobs from an earlier launch, and SLURM does not say "
            "whether they still wait or run. Try again when `squeue` works."
        )
    return {trial: job for trial, job in jobs.items() if job in known and known[job].active}


def submit(
    study: StudyDir,
    trials: Sequence[TrialDir],
    cluster: ClusterConfig,
    *,
    command: str,
    hold: bool = False,
    clusters: Clusters | None = None,
    again: Sequence[str] = (),
    scheduler: Scheduler | None = None,
    stacking: Stacking | None = None,
    runner: str = RUNNER,
    cwd: Path | None = None,
) -> list[Submission]:
    """Freezes the code and submits the trials that are missing and not in the queue.

    Of two launches at once the second waits for the first, and then finds nothing to do.

    Args:
        study: its manifest and configurations are on disk.
        trials: as for `describe`, like `cluster`, `clusters`, `again`, `scheduler`, `stacking`.
        cluster: see `trials`.
        command: that asked for it.
        hold: submit held jobs (`scontrol release` starts them).
        clusters: see `trials`.
        again: see `trials`.
        scheduler: see `trials`.
        stacking: see `trials`.
        runner: in place of the training, for tests.
        cwd: where the user's own modules lie; None: here.

    Returns:
        What was submitted; empty where nothing is missing.
    """
    scheduler = scheduler or Scheduler()
    with study.lock(name=".submit.lock", stale=180.0):
        request = describe(
            study, trials, cluster, clusters=clusters, again=again, scheduler=scheduler,
            stacking=stacking,
        )  # fmt: skip
        Holds().release(scheduler.jobs(set(study.jobs_of_trials().values())).values())
        if not request.classes:
            return []
        incidents.unhold(study.path)
        digest = freeze_source(study, cwd)
        common = {
            "source": f"{names.SOURCE}/{digest}",
            "command": command,
            "runner": runner,
        }
        return submit_more(study, request, common, again=again, hold=hold)
