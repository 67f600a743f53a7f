"""Hands a study to SLURM and returns: what fits into the queue now, and a feeder for the rest."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.errors import StudyError
from ablate.launch.pool import RUNNER
from ablate.launch.slurm.feed import Feed
from ablate.launch.slurm.ill_nodes import ill_nodes
from ablate.launch.slurm.limits import read_limits
from ablate.launch.slurm.request import Request, check_slurm
from ablate.launch.slurm.request import describe as describe_classes
from ablate.launch.slurm.sbatch import submit_array
from ablate.launch.slurm.scheduler import Scheduler
from ablate.launch.slurm.source import freeze_source
from ablate.launch.slurm.task import Task
from ablate.rundir import ENDED, StudyDir, Submission, TrialDir, incidents, names

__all__ = ["describe", "submit", "submit_more"]

SUBMITIT = "submitit"
"""Folder of the study with scripts, pickles and the jobs' own logs: one a submission."""

Clusters = Mapping[str, ClusterConfig]


def describe(
    study: StudyDir,
    trials: Sequence[TrialDir],
    cluster: ClusterConfig,
    *,
    clusters: Clusters | None = None,
    again: Sequence[str] = (),
    scheduler: Scheduler | None = None,
) -> Request:
    """What `submit` with the same arguments would ask for; asks SLURM, and changes nothing.

    Args:
        study: where earlier submissions stand; it need not exist yet.
        trials: those that have ended are left out, unless as one of `again`.
        cluster: what every trial asks for ...
        clusters: ... but these: trial id -> its own.
        again: ended statuses to run again.
        scheduler: asks SLURM.

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
        if trial.id in active or state.status == "running":
            queued.append(trial.id)
        elif state.status not in ENDED or state.status in again:
            missing.append(trial.id)
    own = {id: (clusters or {}).get(id, cluster) for id in [*missing, *queued]}
    return describe_classes(own, limits.array, limits.free, queued)


def queued_trials(study: StudyDir, scheduler: Scheduler) -> dict[str, str]:
    """Trial id -> job, of what SLURM still has waiting or running.

    Raises:
        StudyError: where there are submissions and SLURM does not answer.
    """
    jobs = {
        trial: job
        for submission in study.submissions()
        for trial, job in submission.jobs_of_trials().items()
    }
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
    runner: str = RUNNER,
    cwd: Path | None = None,
) -> list[Submission]:
    """Freezes the code and submits the trials that are missing and not in the queue.

    Of two launches at once the second waits for the first, and then finds nothing to do.

    Args:
        study: its manifest and configurations are on disk.
        trials: as for `describe`, like `cluster`, `clusters`, `again` and `scheduler`.
        cluster: see `trials`.
        command: that asked for it.
        hold: submit held jobs (`scontrol release` starts them).
        clusters: see `trials`.
        again: see `trials`.
        scheduler: see `trials`.
        runner: in place of the training, for tests.
        cwd: where the user's own modules lie; None: here.

    Returns:
        What was submitted; empty where nothing is missing.
    """
    with study.lock(name=".submit.lock", stale=180.0):
        request = describe(
            study, trials, cluster, clusters=clusters, again=again, scheduler=scheduler
        )
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


def submit_more(
    study: StudyDir,
    request: Request,
    common: dict[str, Any],
    *,
    again: Sequence[str] = (),
    hold: bool = False,
    heals: int = 0,
    reached: int = 0,
) -> list[Submission]:
    """Submits what fits, and a feeder for what does not (or that looks after what is lost).

    Called with the study's submit lock held; by a launch, and by a feeder.
    """
    root = study.path.resolve()
    source = root / common["source"]
    made: list[Submission] = []
    held_back: list[tuple[ClusterConfig, list[str]]] = []
    chunks, feeder = _chunks(request)
    refused: StudyError | None = None
    for cluster, tasks, fits in chunks:
        ids, asked = [id for task in tasks for id in task], asdict(cluster)
        if not fits or refused:
            held_back.append((cluster, ids))
            continue
        calls = [
            Task(
                study=str(root),
                trials=task,
                cluster=asked,
                source=common["source"],
                runner=common["runner"],
                again=tuple(again),
            )
            for task in tasks
        ]
        try:
            job_id = submit_array(
                calls,
                cluster,
                root / SUBMITIT / uuid.uuid4().hex[:12],
                name=study.name,
                source=source,
                exclude=ill_nodes(study, cluster),
                hold=hold,
            )
        except StudyError as error:
            if not _is_limit(error) or not (made or _others(study)):
                raise
            refused = error
            held_back.append((cluster, ids))
            continue
        record = Submission(
            job_id=job_id,
            tasks=tasks,
            resources=asked,
            source=common["source"],
            command=common["command"],
        )
        made.append(study.add_submission(record))
    waiting = [id for _, ids in held_back for id in ids]
    if feeder and (made or waiting):
        made += _submit_feeder(study, request, made, held_back, common, again, heals, reached)
    return made


def _chunks(
    request: Request,
) -> tuple[list[tuple[ClusterConfig, list[list[str]], bool]], bool]:
    """(class, tasks, whether the queue takes them) of each array; and whether a feeder is due."""
    feeder = any(c.cluster.heal for c in request.classes)
    free = request.free
    limited = free is not None and free < request.tasks + feeder
    feeder = feeder or limited
    largest = request.array
    if limited and free is not None:
        free = max(1, free - 1)  # the feeder takes a place too
        # Two halves: when the first one is over, the second keeps the nodes busy.
        largest = min(largest, max(1, (free + 1) // 2))
    chunks = []
    for found in request.classes:
        tasks = found.tasks
        while tasks:
            size = largest if free is None else min(largest, free)
            part = tasks[:size] if size else tasks
            tasks = tasks[len(part) :]
            chunks.append((found.cluster, part, size > 0))
            if free is not None and size:
                free -= len(part)
    return chunks, feeder


def _submit_feeder(
    study: StudyDir,
    request: Request,
    made: list[Submission],
    held_back: list[tuple[ClusterConfig, list[str]]],
    common: dict[str, Any],
    again: Sequence[str],
    heals: int,
    reached: int,
) -> list[Submission]:
    root = study.path.resolve()
    first = request.classes[0].cluster if request.classes else held_back[0][0]
    small = replace(
        first, pack=1, nodes=1, gpus=0, cpus=1, memory=None, time="30m", grace=60, parallel=None
    )
    arrays = [s.job_id for s in made] or _others(study)
    # With something to feed it comes when the first array is over, else when all are.
    after = arrays[:1] if held_back and made else arrays
    asked = [(asdict(c.cluster), c.trials) for c in request.classes]
    clusters = {id: values for values, trials in asked for id in trials}
    feed = Feed(
        study=str(root),
        clusters=clusters,
        common=common,
        again=list(again),
        waiting=[id for _, ids in held_back for id in ids],
        heals=heals,
        reached=reached,
    )
    try:
        job_id = submit_array(
            [feed],
            small,
            root / SUBMITIT / uuid.uuid4().hex[:12],
            name=f"{study.name}-feeder",
            source=root / common["source"],
            dependency=f"afterany:{':'.join(after)}" if after else None,
            epilogue=False,
        )
    except StudyError:
        if held_back and not made:
            raise
        return []  # nothing is lost: `ablate launch` again does the same
    record = Submission(
        kind="feeder",
        job_id=job_id,
        held_back=feed.waiting,
        source=common["source"],
        command=common["command"],
        resources=asdict(small),
    )
    return [study.add_submission(record)]


def _others(study: StudyDir) -> list[str]:
    """Arrays of this study that SLURM still has."""
    ids = {s.job_id for s in study.submissions() if s.kind == "trials"}
    active = {i for i, info in Scheduler().jobs(_tasks(study)).items() if info.active}
    return sorted(id for id in ids if any(a.partition("_")[0] == id for a in active))


def _tasks(study: StudyDir) -> set[str]:
    return {job for s in study.submissions() for job in s.jobs_of_trials().values()}


def _is_limit(error: StudyError) -> bool:
    """Whether SLURM refused because the user has enough in the queue."""
    text = str(error).lower()
    return "limit" in text or "qosmaxsubmit" in text or "job violates" in text
