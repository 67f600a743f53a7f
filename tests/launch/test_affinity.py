"""Trials that share an allocation have CPU cores of their own."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from fake_training import make_study, make_trial

from ablate.launch.affinity import confined_cores, share
from ablate.launch.local import run_missing
from ablate.launch.pool import Pool


def test_shares_are_equal_and_apart() -> None:
    assert shares({4, 5, 6, 7, 9}, 2) == [[4, 5], [6, 7]]
    assert shares(range(8), 8) == [[i] for i in range(8)]
    assert shares({3, 4}, 3) == [[]] * 3, "three trials on two cores go where the kernel puts them"
    assert share({4, 5, 6, 7, 9}, {4, 5}, 1, 2) == [6, 7], "what the other has not"
    assert share({4, 5, 6, 7, 9}, {6, 7}, 1, 2) == [4, 5], "what another had before"
    assert share(range(8), {0, 1}, 6, 8) == list(range(2, 8)), "a stack has those of its members"
    assert share(range(8), range(8), 1, 8) == []


def shares(cores: Collection[int], places: int) -> list[list[int]]:
    """Of trials that start one after the other."""
    found: list[list[int]] = []
    for _ in range(places):
        found.append(share(cores, [core for other in found for core in other], 1, places))
    return found


def test_only_the_cores_of_a_confined_task_are_shared_out() -> None:
    mine = sorted(os.sched_getaffinity(0))
    assert confined_cores({"SLURM_CPUS_PER_TASK": str(len(mine))}) == mine
    assert confined_cores({"SLURM_CPUS_PER_TASK": str(len(mine) - 1)}) == [], "not confined"
    assert confined_cores({}) == [], "not SLURM"


def test_each_trial_at_a_time_has_its_share_and_the_next_one_takes_it_over(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    workers = min(2, len(cores))
    made = [make_trial(tmp_path, f"arm{i}", steps=8, pause=0.05, cores=True) for i in range(4)]
    study = make_study(tmp_path, made)
    with Pool("fake_training:run") as pool:
        options = {"workers": workers, "cores": cores}
        assert run_missing(study.trials(), pool, **options) is None  # type: ignore[arg-type]
        assert pool.cores == {}
    found = [row["cores"] for trial in study.trials() for row in trial.stitched()]
    assert len(found) == 32
    assert {tuple(c) for c in found} == {tuple(share) for share in shares(cores, workers)}
    assert sorted(os.sched_getaffinity(0)) == cores, "this process is where it was"
