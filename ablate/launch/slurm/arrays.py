"""A request as arrays: what fits into the queue now, and a feeder for the rest."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ablate.config.schema import ClusterConfig
from ablate.errors import StudyError
from ablate.launch.slurm.feed import Feed
from ablate.launch.slurm.ill_nodes import ill_nodes
from ablate.launch.slurm.request import Request
from ablate.launch.slurm.sbatch import submit_array
from ablate.launch.slurm.scheduler import Scheduler, base_id
from ablate.launch.slurm.task import Task
from ablate.rundir import StudyDir, Submission

__all__ = ["submit_more"]

SUBMITIT = "submitit"
"""Folder of the study with scripts, pickles and the jobs' own logs: one a submission."""


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
    made: list[Submission] = []
    waiting: list[str] = []
    chunks, feeder_due = _chunks(request)
    full = False
    for cluster, tasks, fits in chunks:
        ids = [id for task in tasks for id in task]
        if full or not fits:
            waiting += ids
            continue
        try:
            made.append(_submit_tasks(study, cluster, tasks, common, again, hold))
        except StudyError as error:
            if not _is_limit(error):
                raise
            full = True
            if not made and not _others(study):
                made.append(_submit_fewer(study, cluster, tasks, common, again, hold, error))
                ids = ids[sum(map(len, made[0].tasks)) :]
            waiting += ids
    if feeder_due and (made or waiting):
        feed = Feed(
            study=str(root),
            clusters={id: asdict(c.cluster) for c in request.classes for id in c.trials},
            common=common,
            again=list(again),
            waiting=waiting,
            heals=heals,
            reached=reached,
        )
        made += _submit_feeder(study, feed, request.classes[0].cluster, made)
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


def _submit_tasks(
    study: StudyDir,
    cluster: ClusterConfig,
    tasks: list[list[str]],
    common: dict[str, Any],
    again: Sequence[str],
    hold: bool,
) -> Submission:
    """One array, recorded in the study."""
    root, asked = study.path.resolve(), asdict(cluster)
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
    job_id = submit_array(
        calls,
        cluster,
        _new_folder(root),
        name=study.name,
        source=root / common["source"],
        exclude=ill_nodes(study, cluster),
        hold=hold,
    )
    record = Submission(
        job_id=job_id,
        tasks=tasks,
        resources=asked,
        source=common["source"],
        command=common["command"],
    )
    return study.add_submission(record)


def _submit_fewer(
    study: StudyDir,
    cluster: ClusterConfig,
    tasks: list[list[str]],
    common: dict[str, Any],
    again: Sequence[str],
    hold: bool,
    refused: StudyError,
) -> Submission:
    """The first half of an array that SLURM refused for a limit which could not be read; or a
    quarter, and so on.

    Raises:
        StudyError: as before, where it takes not even one task.
    """
    while tasks := tasks[: len(tasks) // 2]:
        try:
            return _submit_tasks(study, cluster, tasks, common, again, hold)
        except StudyError as error:
            if not _is_limit(error):
                raise
    raise refused


def _submit_feeder(
    study: StudyDir, feed: Feed, cluster: ClusterConfig, made: Sequence[Submission]
) -> list[Submission]:
    """The job that goes on from here: where `cluster` runs, but small."""
    root = study.path.resolve()
    small = replace(
        cluster, pack=1, nodes=1, gpus=0, cpus=1, memory=None, time="30m", grace=60, parallel=None
    )
    arrays = [s.job_id for s in made] or _others(study)
    # With something to feed it comes when the first array is over, else when all are.
    after = arrays[:1] if feed.waiting and made else arrays
    try:
        job_id = submit_array(
            [feed],
            small,
            _new_folder(root),
            name=f"{study.name}-feeder",
            source=root / feed.common["source"],
            dependency=f"afterany:{':'.join(after)}" if after else None,
            epilogue=False,
        )
    except StudyError:
        if feed.waiting and not made:
            raise
        return []  # nothing is lost: `ablate launch` again does the same
    record = Submission(
        kind="feeder",
        job_id=job_id,
        held_back=feed.waiting,
        source=feed.common["source"],
        command=feed.common["command"],
        resources=asdict(small),
    )
    return [study.add_submission(record)]


def _new_folder(root: Path) -> Path:
    return root / SUBMITIT / uuid.uuid4().hex[:12]


def _others(study: StudyDir) -> list[str]:
    """Arrays of this study that SLURM still has."""
    known = Scheduler().jobs(set(study.jobs_of_trials().values()))
    return sorted({base_id(task) for task, info in known.items() if info.active})


def _is_limit(error: StudyError) -> bool:
    """Whether SLURM refused because the user has enough in the queue."""
    text = str(error).lower()
    return "limit" in text or "qosmaxsubmit" in text or "job violates" in text
