"""`submit`: arrays out, the client gone, every trial done."""

from __future__ import annotations

from pathlib import Path

from fake_node import all_done, launch, make_study, steps_of
from slurm_box import Box

from ablate.rundir import StudyDir


def test_an_array_runs_every_trial_and_says_completed(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(4)})
    array, feeder = launch(study)
    assert [len(t) for t in array.tasks] == [1] * 4
    assert feeder.kind == "feeder"
    box.until(lambda: all_done(study), 60)
    for i, trial in enumerate(study.trials()):
        assert steps_of(trial) == list(range(1, 21))
        assert trial.state().job_id == f"{array.job_id}_{i}"
        record = trial.newest_attempt().record()
        assert (record["restart"], record["node"][0]) == (0, "n")
        job = f"{array.job_id}_{i}"
        box.until(lambda job=job: box.history(job) == [("COMPLETED", "0:0")], 20)
    box.until(lambda: not box.active(), 60)
    assert launch(study) == []


SWEEP = """\
# @package _global_
sweep:
  question: Does it run?
  baseline: [size=tiny, train.steps=6, train.batch_size=2, train.sequence_length=16]
  factors:
    position: [position=rope, position=alibi]
  seeds: 2
"""


def user_folder(path: Path) -> None:
    (path / "sweeps").mkdir()
    (path / "sweeps" / "mine.yaml").write_text(SWEEP)
    words = "".join(f"{i} times {i} is {i * i}, and so it goes on. " for i in range(400))
    (path / "train.txt").write_text(words)
    (path / "held_out.txt").write_text(words[::-1][:2000])


WORDS = (
    "launch", "sweep=mine", "cluster=slurm", "resources=cpu", "data.path=train.txt",
    "data.validation_path=held_out.txt", "data.cache_dir=cache", "cluster.time=20m",
)  # fmt: skip


def test_ablate_launch_says_what_it_asks_for_submits_and_returns(box: Box, tmp_path: Path) -> None:
    user_folder(tmp_path)
    dry = box.ablate(*WORDS, "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "6 trials as 6 tasks in 1 array: each 1 CPU, 2G for at most 20m" in dry.stdout
    assert not (tmp_path / "runs").exists()
    done = box.ablate(*WORDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Submitted 6 tasks" in done.stdout
    study = StudyDir(tmp_path / "runs" / "mine")
    box.until(lambda: all_done(study), 120)
    again = box.ablate(*WORDS, cwd=tmp_path)
    assert "Nothing is missing" in again.stdout
