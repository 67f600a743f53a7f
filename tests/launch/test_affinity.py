"""Trials that share an allocation have CPU cores of their own."""

from __future__ import annotations

import os
from pathlib import Path

from fake_training import make_study, make_trial

from ablate.launch.affinity import confined_cores, shares
from ablate.launch.local import run_missing
from ablate.launch.pool import Pool


def test_shares_are_equal_and_apart() -> None:
    assert shares({4, 5, 6, 7, 9}, 2) == [[4, 5], [6, 7]]
    assert shares(range(8), 8) == [[i] for i in range(8)]
    assert shares({3, 4}, 3) == [], "three trials on two cores go where the kernel puts them"


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
        options = {"workers": workers, "shares": shares(cores, workers)}
        assert run_missing(study.trials(), pool, **options) is None  # type: ignore[arg-type]
        assert pool.cores == {}
    found = [row["cores"] for trial in study.trials() for row in trial.stitched()]
    assert len(found) == 32
    assert {tuple(c) for c in found} == {tuple(share) for share in shares(cores, workers)}
    assert sorted(os.sched_getaffinity(0)) == cores, "this process is where it was"
