"""Every way in which SLURM ends a job, and what becomes of the trial. The trainings are fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_node import all_done, launch, make_study, outcomes_of, steps_of
from slurm_box import Box, in_use, lives

from ablate.rundir import StudyDir, TrialDir

LONG = {"pause": 0.1, "steps": 80}
"""Eight seconds."""


@pytest.fixture
def unwarned(boxes: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """SLURM's default: no signal to the user's step on preemption."""
    yield from in_use(boxes(preempt_params="enable_configless"), monkeypatch)


@pytest.fixture
def strict(boxes: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Steps that use more memory than they asked for are killed."""
    extra = "JobAcctGatherParams=OverMemoryKill"
    yield from in_use(boxes(extra=extra, nodes=1), monkeypatch)


def one(path: Path, **fake: Any) -> tuple[StudyDir, TrialDir]:
    study = make_study(path / "s", {"arm": {**LONG, **fake}})
    return study, study.trials()[0]


def is_running(trial: TrialDir, after: int = 12) -> bool:
    state = trial.state()
    return state.status == "running" and ((trial.latest_row() or {}).get("step", 0)) >= after


def is_whole(trial: TrialDir) -> bool:
    return steps_of(trial) == list(range(1, trial.state().steps + 1))


def preempt(box: Box, node: str) -> None:
    words = ("-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")
    box.run("sbatch", *words)


def test_a_failed_trial_is_failed_in_sacct_and_afterok_does_not_start(
    box: Box, tmp_path: Path
) -> None:
    study, trial = one(tmp_path, pause=0.0, fail_at=3)
    array, *_ = launch(study, heal=False, hold=True)
    after = box.run(
        "sbatch",
        "--parsable",
        f"--dependency=afterok:{array.job_id}",
        "-o",
        "/dev/null",
        "--wrap",
        "true",
    ).strip()
    box.run("scontrol", "release", array.job_id)
    box.until(lambda: trial.state().status == "failed", 40)
    assert (trial.state().outcome, trial.state().attempt) == ("code", 1)
    assert trial.state().reason == "ZeroDivisionError: division by zero"
    box.until(lambda: box.history(array.job_id) == [("FAILED", "1:0")], 20)
    reason = ("squeue", "-h", "-j", after, "-o", "%r")
    box.until(lambda: "DependencyNeverSatisfied" in box.run(*reason), 20)


def test_a_process_that_exits_by_itself_failed_and_one_that_is_killed_goes_on(
    box: Box, tmp_path: Path
) -> None:
    fakes = {"exits": {"exit_at": 15}, "killed": {"kill_at": 15}, "diverges": {
        "fail_at": 5, "how": "diverged"}}  # fmt: skip
    study = make_study(tmp_path / "s", fakes)
    array, *_ = launch(study, heal=False)
    exits, killed, diverges = study.trials()
    box.until(lambda: killed.live_state().status == "done", 60)
    assert outcomes_of(killed) == ["node", "done"]
    assert is_whole(killed)
    assert (exits.state().status, exits.state().outcome) == ("failed", "code")
    assert "exit code 3" in (exits.state().reason or "")
    assert (diverges.state().status, diverges.state().attempt) == ("diverged", 1)
    box.until(lambda: box.history(f"{array.job_id}_0") == [("FAILED", "3:0")], 20)
    box.until(lambda: box.history(f"{array.job_id}_2") == [("COMPLETED", "0:0")], 20)


@pytest.mark.parametrize("partition", ["low", pytest.param("low0", marks=pytest.mark.slow)])
def test_preemption_with_a_warning_saves_and_is_requeued_once(
    box: Box, tmp_path: Path, partition: str
) -> None:
    study, trial = one(tmp_path)
    array, *_ = launch(study, heal=False, partition=partition, sbatch={"nodelist": "n1"})
    box.until(lambda: is_running(trial), 40)
    preempt(box, "n1")
    box.until(lambda: all_done(study), 60)
    assert outcomes_of(trial) == ["preempted", "done"]
    second = trial.attempts()[1].record()
    assert second["restart"] == 1
    assert second["resumed"]["step"] >= 12  # where it was told to stop, not at a multiple of ten
    assert is_whole(trial)
    box.until(lambda: box.history(array.job_id)[-1][0] == "COMPLETED", 20)
    assert len(box.history(array.job_id)) == 2


def test_scancel_is_a_cancelled_trial_and_not_a_lost_one(box: Box, tmp_path: Path) -> None:
    """Of an array one element; the other one does not notice."""
    study = make_study(tmp_path / "s", {"cancelled": dict(LONG), "other": dict(LONG)})
    trial, other = study.trials()
    array, *_ = launch(study)
    box.until(lambda: is_running(trial), 40)
    box.run("scancel", f"{array.job_id}_0")
    box.until(lambda: not box.active(), 60)  # the feeder has looked, and left it alone
    assert (trial.state().status, trial.state().outcome) == ("cancelled", "cancelled")
    box.until(lambda: box.history(f"{array.job_id}_0")[0][0].startswith("CANCELLED"), 60)
    assert trial.newest_checkpoint() is not None
    assert outcomes_of(other) == ["done"]


def test_the_cancel_mark_ends_a_running_trial_and_one_that_starts(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"runs": dict(LONG), "waits": dict(LONG)})
    runs, waits = study.trials()
    waits.cancel_path.touch()
    launch(study, heal=False)
    box.until(lambda: is_running(runs), 40)
    runs.cancel_path.touch()
    box.until(lambda: runs.state().status == "cancelled", 20)
    assert runs.newest_checkpoint() is not None
    assert (waits.state().status, waits.latest_row()) == ("cancelled", None)


@pytest.mark.slow
def test_the_time_limit_saves_and_goes_on_as_often_as_it_takes(box: Box, tmp_path: Path) -> None:
    study, trial = one(tmp_path, pause=0.5, steps=130)
    launch(study, heal=False, time="1m", grace=25)
    box.until(lambda: all_done(study), 300)
    assert set(outcomes_of(trial)[:-1]) == {"time_limit"}
    assert len(outcomes_of(trial)) >= 2
    assert is_whole(trial)


@pytest.mark.slow
def test_a_trial_that_does_not_listen_is_killed_at_its_limit_and_healed(
    box: Box, tmp_path: Path
) -> None:
    study, trial = one(tmp_path, pause=0.5, steps=150, deaf=True)
    array, *_ = launch(study, time="1m", grace=25)
    box.until(lambda: all_done(study), 400)
    assert outcomes_of(trial)[0] == "time_limit"
    assert is_whole(trial)
    # The batch script may just have time to ask for the requeue; else the feeder submits it again.
    box.until(lambda: box.history(array.job_id)[0][0] in ("TIMEOUT", "REQUEUED"), 60)


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["low", "low0"])
def test_preemption_without_a_warning_resumes_from_the_newest_checkpoint(
    unwarned: Box, tmp_path: Path, partition: str
) -> None:
    study, trial = one(tmp_path, deaf=True)
    launch(study, heal=False, partition=partition, sbatch={"nodelist": "n1"})
    unwarned.until(lambda: is_running(trial), 40)
    preempt(unwarned, "n1")
    unwarned.until(lambda: all_done(study), 90)
    assert outcomes_of(trial) == ["preempted", "done"]
    assert trial.attempts()[1].record()["resumed"]["step"] % 10 == 0
    assert is_whole(trial)


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["low", "low0"])
def test_without_requeue_a_preempted_trial_is_submitted_again_by_the_feeder(
    box: Box, tmp_path: Path, partition: str
) -> None:
    preempted_for_good(box, tmp_path, partition=partition)


@pytest.mark.slow
def test_without_requeue_and_without_a_warning_the_feeder_submits_it_again_too(
    unwarned: Box, tmp_path: Path
) -> None:
    """submitit waits for ever for such a job."""
    preempted_for_good(unwarned, tmp_path, partition="low", deaf=True)


def preempted_for_good(box: Box, path: Path, *, partition: str, **fake: Any) -> None:
    study, trial = one(path, **fake)
    array, *_ = launch(study, partition=partition, sbatch={"nodelist": "n1", "no-requeue": True})
    box.until(lambda: is_running(trial), 40)
    preempt(box, "n1")
    box.until(lambda: all_done(study), 120)
    assert outcomes_of(trial) == ["preempted", "done"]
    assert is_whole(trial)
    box.until(lambda: box.history(array.job_id)[0][0] in ("PREEMPTED", "FAILED"), 60)
    assert len(box.history(array.job_id)) == 1


@pytest.mark.slow
def test_a_dead_node_costs_the_steps_since_the_last_checkpoint(box: Box, tmp_path: Path) -> None:
    study, trial = one(tmp_path)
    launch(study, heal=False)
    box.until(lambda: is_running(trial), 40)
    node = trial.newest_attempt().record()["node"]
    box.kill_node(node)
    box.until(lambda: all_done(study), 150)
    assert outcomes_of(trial) == ["node", "done"]
    assert trial.attempts()[1].record()["node"] != node
    assert is_whole(trial)
    assert [p.name for p in (study.path / "nodes").iterdir()] == [node]


@pytest.mark.slow
def test_without_requeue_the_trial_of_a_dead_node_is_submitted_again_by_the_feeder(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feeder comes before the lease of the dead has expired: this once ended the study."""
    monkeypatch.setenv("ABLATE_LEASE_SECONDS", "50")
    study, trial = one(tmp_path)
    array, *_ = launch(study, sbatch={"no-requeue": True})
    box.until(lambda: is_running(trial), 40)
    box.kill_node(trial.newest_attempt().record()["node"])
    box.until(lambda: all_done(study), 150)
    assert outcomes_of(trial) == ["node", "done"]
    assert is_whole(trial)
    box.until(lambda: box.history(array.job_id) == [("NODE_FAIL", "0:0")], 60)


@pytest.mark.slow
def test_split_brain_the_newer_attempt_counts_and_the_old_one_stops(
    box: Box, tmp_path: Path
) -> None:
    study, trial = one(tmp_path, pause=0.2, steps=400)
    launch(study, heal=False)
    box.until(lambda: is_running(trial), 40)
    first = trial.newest_attempt()
    box.kill_node(first.record()["node"], daemon_only=True)
    box.until(lambda: len(trial.attempts()) == 2, 120)
    box.until(lambda: trial.attempts()[1].record().get("node"), 10)
    assert trial.attempts()[1].record()["node"] != first.record()["node"]
    box.until(lambda: not lives(first.record()["pid"]), 20, "for the old copy to notice")
    box.until(lambda: all_done(study), 120)
    assert is_whole(trial)
    assert trial.state().attempt == 2


def test_over_memory_is_out_of_memory_and_is_not_tried_again(strict: Box, tmp_path: Path) -> None:
    study, trial = one(tmp_path, pause=0.5, hog_at=3, hog=800_000_000)
    array, *_ = launch(study, memory="300M")
    strict.until(lambda: not strict.active(), 120)
    assert (trial.state().status, trial.state().outcome) == ("failed", "oom")
    assert len(trial.attempts()) == 1
    strict.until(lambda: strict.history(array.job_id)[-1][0] == "FAILED", 60)


def test_a_suspended_job_keeps_its_trial_unless_its_lease_expires(box: Box, tmp_path: Path) -> None:
    study, trial = one(tmp_path)
    array, *_ = launch(study, heal=False)
    box.until(lambda: is_running(trial), 40)
    box.run("scontrol", "suspend", array.job_id)
    box.until(lambda: box.active()[array.job_id] == "SUSPENDED", 20)
    assert launch(study, heal=False) == []
    box.run("scontrol", "resume", array.job_id)
    box.until(lambda: all_done(study), 60)
    assert outcomes_of(trial) == ["done"]


@pytest.mark.slow
def test_requeuehold_waits_and_goes_on_when_released(box: Box, tmp_path: Path) -> None:
    study, trial = one(tmp_path, deaf=True)
    array, *_ = launch(study, heal=False)
    box.until(lambda: is_running(trial), 40)
    box.run("scontrol", "requeuehold", array.job_id)
    box.until(lambda: box.active().get(array.job_id) in ("PENDING", "REQUEUE_HOLD"), 30)
    assert launch(study, heal=False) == []
    box.run("scontrol", "release", array.job_id)
    box.until(lambda: all_done(study), 60)
    assert outcomes_of(trial) == ["preempted", "done"]
    assert is_whole(trial)
