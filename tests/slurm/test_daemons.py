"""SLURM's own daemons die: nothing is submitted twice, nothing is lost, and nothing is guessed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_node import all_done, launch, make_study, outcomes_of, statuses, steps_of
from slurm_box import Box

from ablate.errors import StudyError

LONG = {"pause": 0.1, "steps": 80}


def controller_answers(box: Box) -> bool:
    return box.call("scontrol", "ping").returncode == 0 and box.call("squeue", "-h").returncode == 0


def nothing_goes_on(box: Box) -> bool:
    """SLURM has no job, or holds each that it could not start."""
    reasons = box.call("squeue", "-h", "-o", "%r").stdout.lower().splitlines()
    return all("launch" in reason for reason in reasons)


@pytest.mark.slow  # minutes, where the leases of forgotten jobs must expire
def test_slurmctld_killed_soon_after_a_start_runs_every_trial_to_its_end_once(
    box: Box, tmp_path: Path
) -> None:
    """Its state is not saved yet: it may start a job again that already runs, or fail it, or have
    forgotten all of them, the feeder too. Then the user launches again.
    """
    study = make_study(tmp_path / "s", {f"arm{i}": dict(LONG) for i in range(3)})
    launch(study)
    box.until(lambda: "running" in statuses(study), 40)
    box.kill_daemon("slurmctld")
    time.sleep(2)
    box.start_daemon("slurmctld")
    box.until(lambda: controller_answers(box), 60)

    def ended() -> bool:
        if nothing_goes_on(box) and "running" not in statuses(study):
            launch(study)
        return all_done(study)

    box.until(ended, 240)
    for trial in study.trials():
        assert steps_of(trial) == list(range(1, 81))
        assert outcomes_of(trial).count("done") == 1
        assert trial.state().attempt == len(trial.attempts())


def test_with_slurmctld_dead_a_launch_says_so_and_submits_nothing(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"a": {}})
    box.kill_daemon("slurmctld")
    try:
        with pytest.raises(StudyError, match="does not answer"):
            launch(study)
        assert study.submissions() == []
    finally:
        box.start_daemon("slurmctld")
    box.until(lambda: controller_answers(box), 60)
    launch(study, heal=False)
    box.until(lambda: all_done(study), 60)


def test_with_slurmdbd_dead_a_launch_runs_and_a_killed_trial_goes_on(
    box: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {"plain": {}, "killed": {"kill_at": 15}})
    box.kill_daemon("slurmdbd")
    try:
        array, *_ = launch(study, heal=False)
        box.until(lambda: all_done(study), 90)
    finally:
        box.start_daemon("slurmdbd")
    plain, killed = study.trials()
    assert outcomes_of(plain) == ["done"]
    assert outcomes_of(killed) == ["node", "done"]
    assert steps_of(killed) == list(range(1, 21))
    box.until(lambda: box.call("sacct", "-n").returncode == 0, 30, "for slurmdbd to answer")
    box.until(lambda: box.history(f"{array.job_id}_0") == [("COMPLETED", "0:0")], 60)
