"""Trials that are stacked, as tasks of an array: whole stacks, whoever runs them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.identity import this_job
from ablate.launch.slurm.request import describe
from ablate.launch.slurm.submit import stacked
from ablate.launch.slurm.task import Task
from ablate.launch.stacks import Stacks
from ablate.rundir import State, StudyDir, Submission, TrialDir


def stackable(path: Path, seeds: int) -> list[TrialDir]:
    """Trials of two graphs in turn, which can be stacked."""
    still = {f"{kind}_dropout": 0.0 for kind in ("attention", "residual", "embedding")}
    trials = []
    for i in range(seeds):
        for name, width in (("narrow", 32), ("wide", 64)):
            trial = StudyDir(path).trial(f"{name}{i}")
            model = {**still, "d_model": width, "n_heads": 2}
            trial.create({"seed": i, "model": model, "train": {"steps": 5}}, 5)
            trials.append(trial)
    return trials


@pytest.mark.parametrize(("pack", "size"), [(4, 4), (8, 4), (6, 4), (8, 3), (5, 2), (3, None)])
@pytest.mark.parametrize("left", [slice(None), slice(3, None), slice(1, 16, 5)], ids=str)
def test_a_task_of_an_array_takes_whole_stacks(
    pack: int, size: int | None, left: slice, tmp_path: Path
) -> None:
    trials = stackable(tmp_path / "s", 9)[left]
    by_id = {t.id: t for t in trials}
    cluster = ClusterConfig(name="slurm", pack=pack, stack=size)
    request = stacked(describe(dict.fromkeys(by_id, cluster), 1000), trials, None)
    (found,) = request.classes
    assert sorted(id for task in found.tasks for id in task) == sorted(by_id)
    assert max(map(len, found.tasks)) <= pack
    stacks = Stacks.of(trials, size)
    assert (max(map(len, stacks.groups(by_id))) > 1) == (size is not None)
    for task in found.tasks:
        there = Stacks.of([by_id[id] for id in task], size)  # as the node does
        assert all(there.seats(by_id[id]) == stacks.seats(by_id[id]) for id in task)
    if size is None:
        ids = list(by_id)
        assert found.tasks == [ids[i : i + pack] for i in range(0, len(ids), pack)]


def test_a_stack_that_has_begun_stays_together_in_what_is_submitted_again(tmp_path: Path) -> None:
    trials = stackable(tmp_path / "s", 8)
    narrow = [t.id for t in trials if t.id.startswith("narrow")]
    seats = narrow[:1] + narrow[3:6]
    for id in (seats[1], seats[3]):
        attempt = StudyDir(tmp_path / "s").trial(id).acquire()
        attempt.note(seats=seats, stacked=4)
        attempt.append("metrics.jsonl", {"step": 1})
        attempt.release(State(status="preempted"))
    for pack, size in ((4, 4), (4, 2), (4, None), (8, 8)):
        clusters = {t.id: ClusterConfig(name="slurm", pack=pack, stack=size) for t in trials}
        (found,) = stacked(describe(clusters, 1000), trials, None).classes
        (task,) = [task for task in found.tasks if set(task) & set(seats)]
        assert set(seats) <= set(task)
    # A task that is smaller than the stack has a part of it, and every trial has a task.
    alone = {t.id: ClusterConfig(name="slurm") for t in trials}
    (found,) = stacked(describe(alone, 1000), trials, None).classes
    assert sorted(found.tasks) == sorted([t.id] for t in trials)


def test_a_free_slot_takes_over_a_whole_stack(tmp_path: Path, monkeypatch: Any) -> None:
    study = StudyDir(tmp_path / "s")
    trials = stackable(study.path, 8)
    narrow, wide = ([t for t in trials if t.id.startswith(n)] for n in ("narrow", "wide"))
    tasks = [[t.id for t in narrow], [t.id for t in wide]]
    study.add_submission(Submission(job_id="7", tasks=tasks, source="", command="", resources={}))
    wide[5].acquire()  # by its own task, which has not come further
    seen: list[Any] = []

    def run_missing(trials: list[TrialDir], pool: Any, **said: Any) -> None:
        assert said["more"](3) == [], "a stack of four, which would have to wait here"
        clock[0] += 60
        seen.append([t.id for t in said["more"](4)])
        seen.append([said["stacks"].seats(study.trial(id)) for id in seen[0]])
        seen.append([said["stacks"].seats(t) for t in trials])
        seen.append(said["more"](4))
        assert (said["places"], said["workers"]) == (8, 8)

    class NoPool(contextlib.nullcontext[Any]):
        def gpus(self) -> int:
            return 0

        def __enter__(self) -> Any:
            return self

    clock = [0.0]
    monkeypatch.setattr("ablate.launch.slurm.task.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("ablate.launch.slurm.task.run_missing", run_missing)
    monkeypatch.setattr("ablate.launch.slurm.task.Pool", NoPool)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    job = this_job()
    assert job is not None
    cluster = ClusterConfig(name="slurm", pack=8, stack=4)
    task = Task(study=str(study.path), trials=tasks[0])
    task._run_packed(study, narrow, cluster, (), job)
    first = [t.id for t in wide[:4]]
    own = [tuple(tasks[0][:4])] * 4 + [tuple(tasks[0][4:])] * 4
    assert seen == [first, [tuple(first)] * 4, own, []]
