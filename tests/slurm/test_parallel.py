"""One trial on several nodes of a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_box import Box

from ablate.rundir import StudyDir
from ablate.rundir.names import EVENTS

SWEEP = """\
# @package _global_
sweep:
  question: Does a trial train on two nodes?
  baseline: [size=tiny]
  factors: {activation: [activation=relu]}
  seeds: 1
"""


def launch(box: Box, folder: Path, *overrides: str) -> StudyDir:
    (folder / "sweeps").mkdir()
    (folder / "sweeps/two.yaml").write_text(SWEEP)
    (folder / "text").mkdir()
    for i in range(20):
        (folder / f"text/{i}.txt").write_text(f"{i} and the lord said unto them " * (20 + i))
    words = [
        "sweep=two", "cluster=slurm", "data.path=text", "data.cache_dir=cache", "parallel=ddp",
        "model.max_sequence_length=32", "train.batch_size=4", "train.steps=12",
        "train.device=cpu", "train.validation_tokens=100", "cluster.grace=20", *overrides,
    ]  # fmt: skip
    done = box.ablate("launch", *words, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return StudyDir(folder / "runs/two")


def test_a_trial_on_two_nodes_runs_to_its_end(box: Box, tmp_path: Path) -> None:
    study = launch(box, tmp_path, "cluster.nodes=2", "cluster.heal=false")
    box.until(lambda: not box.active(), 200)
    for trial in study.trials():
        attempts = trial.attempts()
        logs = [f.read_text() for a in attempts for f in sorted(a.path.glob("log*"))]
        assert trial.state().status == "done", "\n".join(logs)
        assert len(attempts) == 1
        start = next(e for e in trial.stitched(EVENTS) if e["kind"] == "start")
        assert start["processes"] == 2
        job = trial.state().job_id
        assert job is not None
        assert box.history(job)[-1] == ("COMPLETED", "0:0")
        assert json.loads(trial.summary_path.read_text())["processes"] == 2
