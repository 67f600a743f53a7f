"""The process that waits for the next trial: lost, left over, or not yet gone once it is used."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fake_training import make_study, make_trial
from test_local import wait_for

from ablate.launch.local import run_missing
from ablate.launch.pool import Ended, Pool
from ablate.rundir.process import process_started


@pytest.fixture
def pool() -> Pool:
    pool = Pool("fake_training:run")
    pool.gpus()
    return pool


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def spare_of(pool: Pool) -> int:
    wait_for(lambda: len(children(pool.pid)) == 1)
    return children(pool.pid)[0]


def test_a_trial_runs_in_the_process_that_waited_for_it(tmp_path: Path, pool: Pool) -> None:
    trial = make_trial(tmp_path, "arm")
    with pool:
        spare = spare_of(pool)
        assert run_missing([trial], pool, workers=1) is None
    assert trial.attempts()[0].record()["pid"] == spare
    assert process_started(spare) is None


def test_a_trial_starts_though_the_process_that_waited_was_killed(
    tmp_path: Path, pool: Pool
) -> None:
    trial = make_trial(tmp_path, "arm")
    with pool:
        spare = spare_of(pool)
        os.kill(spare, signal.SIGKILL)
        wait_for(lambda: process_started(spare) is None)
        assert run_missing([trial], pool, workers=1) is None
    assert trial.state().status == "done"
    assert len(trial.attempts()) == 1


def test_nothing_waits_for_a_warm_process_that_was_killed(pool: Pool) -> None:
    spare = spare_of(pool)
    os.kill(pool.pid, signal.SIGKILL)
    wait_for(lambda: process_started(spare) is None)
    pool.close()


@pytest.mark.parametrize("gpu", [None, 0])
def test_the_next_trial_waits_for_the_end_of_a_process_on_a_gpu_alone(
    tmp_path: Path, pool: Pool, gpu: int | None
) -> None:
    """What it holds there is free then; elsewhere its codes are enough."""
    trial = make_trial(tmp_path, "arm", linger=1.0)
    make_study(tmp_path, [trial])
    with pool:
        pool.start([trial], gpu=gpu)
        ended: list[Ended] = []
        while not ended:
            ended = pool.wait(5.0)
        process = trial.attempts()[0].record()["pid"]
        assert (process_started(process) is None) == (gpu is not None)
    assert [end.code for end in ended] == [0]
    assert trial.state().status == "done"
