"""Decisions that need no cluster: why a job was stopped, how often SLURM is asked, what is refused,
what a launch asks for, where a rank stands.
"""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from fake_node import make_study

from ablate.config.schema import ClusterConfig, TrialConfig
from ablate.errors import ConfigError, LostProcessError
from ablate.launch import admission
from ablate.launch.ranks import Rank, rank_of
from ablate.launch.slurm.ending import Facts, judge
from ablate.launch.slurm.holds import Holds
from ablate.launch.slurm.identity import this_job
from ablate.launch.slurm.request import describe
from ablate.launch.slurm.scheduler import JobInfo, Scheduler
from ablate.rundir import StudyDir, TrialDir, incidents

NOW = 1_000_000.0


def facts(state: str = "RUNNING", **more: Any) -> Facts:
    usual: dict[str, Any] = {"restarts": 0, "requeue": True, "end": NOW + 3600, "preempted": None}
    return Facts(state=state, **{**usual, **more})


@pytest.mark.parametrize(
    ("said", "outcome", "requeue", "goes_on"),
    [
        (facts(preempted=NOW - 1, end=NOW + 9), "preempted", True, True),
        (facts("COMPLETING", restarts=1), "preempted", False, True),
        (facts("COMPLETING", requeue=False, preempted=NOW - 1), "preempted", False, False),
        (facts("COMPLETING", end=NOW), "time_limit", False, False),
        (facts("COMPLETING"), "cancelled", False, False),
        (facts("CANCELLED"), "cancelled", False, False),
        (facts(end=NOW + 80), "time_limit", True, True),
        (facts(end=NOW + 80, requeue=False), "time_limit", False, False),
        (facts(), "preempted", True, True),
        (None, "preempted", True, True),
    ],
)
def test_why_a_job_was_stopped_and_who_starts_it_again(
    said: Facts | None, outcome: str, requeue: bool, goes_on: bool
) -> None:
    end = judge(said, signal="stopped by SIGUSR2", restart=0, now=NOW, end=NOW + 3600, grace=90)
    assert (end.outcome, end.requeue, end.goes_on) == (outcome, requeue, goes_on)


def test_a_short_job_that_is_preempted_has_not_timed_out() -> None:
    """Pain 4: five minutes asked for, a signal after thirty seconds."""
    said = facts(end=NOW + 10, preempted=NOW)  # SLURM moves the end to that of the grace time
    end = judge(said, signal="stopped by SIGUSR2", restart=0, now=NOW, end=NOW + 270, grace=90)
    assert end.outcome == "preempted"


def test_without_an_answer_the_clock_decides() -> None:
    end = judge(None, signal="stopped by SIGUSR2", restart=0, now=NOW, end=NOW + 100, grace=90)
    assert end.outcome == "time_limit"


def command(folder: Path, name: str, script: str) -> Path:
    """A stand-in for a SLURM command that counts its calls."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {name} >> {folder}/calls\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "calls").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


RUNNING = "7_0|RUNNING|None|n1|0:0|100|200|1:00:00|2|"


def test_slurm_is_asked_once_for_all_and_no_more_often_than_the_interval(commands: Path) -> None:
    """Pain 8: sacct storms."""
    command(commands, "squeue", f"echo '{RUNNING}'")
    command(commands, "sacct", "echo '7_1|FAILED|None|n2|1:0|100|200|60'")
    scheduler = Scheduler(interval=0.3)
    ids = [f"7_{i}" for i in range(200)]
    for _ in range(50):
        known = scheduler.jobs(ids)
    assert calls(commands) == ["squeue", "sacct"]
    assert (known["7_0"].state, known["7_0"].restarts, known["7_0"].time_limit) == (
        "RUNNING", 2, 3600,
    )  # fmt: skip
    assert (known["7_1"].state, known["7_1"].exit_code) == ("FAILED", "1:0")
    assert "7_2" not in known  # unknown, not lost
    time.sleep(0.7)
    scheduler.jobs(ids)
    assert len(calls(commands)) == 4


def test_a_controller_that_is_down_is_asked_ever_less_and_nothing_raises(commands: Path) -> None:
    command(commands, "squeue", "exit 1")
    scheduler = Scheduler(interval=0.05)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert scheduler.jobs(["7_0"]) == {}
    assert not scheduler.answered()
    assert len(calls(commands)) <= 6


def test_without_accounting_what_squeue_forgot_is_unknown(commands: Path) -> None:
    """Pain 7."""
    command(
        commands, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    )
    command(commands, "sacct", "exit 1")
    scheduler = Scheduler()
    assert scheduler.jobs(["7"]) == {}
    assert scheduler.answered()


@pytest.mark.parametrize("word", ["RUNNING", "PENDING", "CANCELLED"])
def test_a_job_that_only_the_accounts_know_of_is_forgotten(word: str, commands: Path) -> None:
    """They call it active for ever, or cancelled by nobody; one that was cancelled says by whom."""
    command(commands, "squeue", "exit 0")
    rows = (f"7_0|{word}|None|n2|0:0|100|200|60", "7_1|CANCELLED by 0|None|n2|0:0|100|200|60")
    command(commands, "sacct", "; ".join(f"echo '{row}'" for row in rows))
    known = Scheduler().jobs(["7_0", "7_1"])
    assert {id: info.state for id, info in known.items()} == {"7_1": "CANCELLED"}


def test_jobs_asked_for_between_two_questions_are_part_of_the_next(commands: Path) -> None:
    command(commands, "squeue", f'echo "$@" >> {commands}/words')
    command(commands, "sacct", "exit 0")
    scheduler = Scheduler(interval=0.2)
    scheduler.jobs(["7_0"])
    scheduler.jobs(["9"])
    time.sleep(0.5)
    scheduler.jobs(["7_0"])
    first, second = (commands / "words").read_text().splitlines()
    assert ("-j 7 " in first, "-j 7,9 " in second) == (True, True)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"nodes": 2}, "cluster.nodes"),
        ({"gpus": 2}, "cluster.gpus"),
        ({"nodes": 2, "pack": 2}, "cluster.nodes"),
    ],
)
def test_what_training_cannot_use_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TrialConfig(cluster=ClusterConfig(name="slurm", **values))


@pytest.mark.parametrize(
    "values",
    [
        {"time": "3600"},
        {"time": "0:00:00"},
        {"memory": "8GB"},
        {"memory": "lots"},
        {"sbatch": {"array": "0-9"}},
        {"sbatch": {"Bad Key": 1}},
        {"environment": {"A B": 1}},
        {"environment": {"A": [1]}},
        {"pack": 0},
        {"gpus": -1},
        {"grace": 5},
        {"partition": "a\nb"},
        {"setup": "module load cuda"},
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=f"cluster.{name}"):
        ClusterConfig(**values)


def test_one_array_a_resource_class() -> None:
    small, large = ClusterConfig(gpus=1, time="2h"), ClusterConfig(gpus=2, pack=2, time="1d")
    clusters = {f"s{i}": small for i in range(6)} | {f"l{i}": large for i in range(5)}
    request = describe(clusters, 4)
    assert [len(c.tasks) for c in request.classes] == [6, 3]
    assert request.gpu_hours == 6 * 2 + 3 * 2 * 24
    assert "6 trials as 6 tasks in 2 arrays" in request.text()


def test_a_rank_follows_from_slurm_or_from_torchrun() -> None:
    slurm = {
        "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
    }  # fmt: skip
    rank = rank_of(slurm)
    assert (rank.rank, rank.world_size, rank.local_rank, rank.master_addr) == (3, 4, 1, "n1")
    assert rank_of({**slurm, "SLURM_PROCID": "0"}).master_port == rank.master_port
    assert rank_of({**slurm, **Rank(rank=1, world_size=2).variables()}).world_size == 2
    assert rank_of({}) == Rank()


def test_a_job_is_named_by_its_array_and_its_incarnation() -> None:
    env = {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    job = this_job({**env, "SLURM_RESTART_COUNT": "2", "SLURMD_NODENAME": "n1"})
    assert job is not None
    assert (job.job_id, job.raw_id, job.restart, job.node) == ("12_3", "15", 2, "n1")
    assert this_job({}) is None


def as_job(monkeypatch: pytest.MonkeyPatch, restart: int, **cluster: Any) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv(admission.CLUSTER, json.dumps(cluster))


def die(trial: TrialDir, restart: int, reached: int) -> None:
    """An attempt that resumes, perhaps saves, and ends without a word."""
    found = trial.newest_checkpoint()
    attempt = trial.acquire(job_id="7", restart=restart, node="n1")
    if found:
        attempt.resumed_from(found[0].number, found[1])
    if reached:
        attempt.begin_checkpoint(reached)
        attempt.commit_checkpoint(reached)


def test_only_deaths_without_progress_use_up_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Path
) -> None:
    """Pain 21: a crash is not repeated for ever."""
    states = "; ".join(["echo '7|NODE_FAIL'"] * 9)
    command(commands, "sacct", states)
    command(commands, "sinfo", "echo n1")
    trial = make_study(tmp_path / "s", {"a": {}}).trials()[0]
    for restart, reached in enumerate([10, 0, 20, 0, 0]):
        die(trial, restart, reached)
    as_job(monkeypatch, 5, max_retries=2)
    attempt = trial.acquire(job_id="7", restart=5, node="n1")
    assert admission.refusal(attempt) is None  # two deaths since step 20 was saved
    attempt = trial.acquire(job_id="7", restart=6, node="n1")
    as_job(monkeypatch, 6, max_retries=2)
    end = admission.refusal(attempt)
    assert end is not None
    assert (end["status"], end["outcome"]) == ("failed", "node")
    assert "3 times without progress" in end["reason"]


def test_different_failures_told_by_other_processes_are_not_one_cause() -> None:
    told = [LostProcessError(f"process 1 of the trial: {what}", "code") for what in ("a", "b", "b")]
    one, other, again = map(admission.signature_of, told)
    assert one != other
    assert other == again


def test_a_node_on_which_several_jobs_died_is_known(tmp_path: Path) -> None:
    study = StudyDir(tmp_path)
    for job in ("7_0", "7_1", "7_1", "7_2"):
        incidents.note_death(study.path, "n3", job, "a", 1)
    for trial in ("a", "b", "c"):  # that shared one allocation
        incidents.note_death(study.path, "n1", "7_0", trial, 2)
    assert incidents.bad_nodes(study.path, 3) == ["n3"]
    assert incidents.bad_nodes(study.path, 0) == []
    assert incidents.exclude_node(study.path, "n3")
    assert not incidents.exclude_node(study.path, "n3")


def test_a_job_whose_start_failed_is_released_once_and_no_other(commands: Path) -> None:
    command(commands, "scontrol", f'echo "$@" >> {commands}/words')
    known = {
        "7_0": JobInfo(job_id="7_0", state="PENDING", reason="launch failed requeued held"),
        "7_1": JobInfo(job_id="7_1", state="PENDING", reason="JobHeldUser"),
        "7_2": JobInfo(job_id="7_2", state="PENDING", reason="Resources"),
    }
    holds = Holds()
    assert holds.release(known.values()) == ["7_0"]
    assert holds.release(known.values()) == []
    assert (commands / "words").read_text() == "release 7_0\n"
