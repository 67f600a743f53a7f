"""One trial on several nodes of a real cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
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
    parallel = next((o for o in overrides if o.startswith("parallel=")), "parallel=ddp")
    overrides = tuple(o for o in overrides if o != parallel)
    words = [
        "sweep=two", "cluster=slurm", "data.path=text", "data.cache_dir=cache", parallel,
        "model.max_sequence_length=32", "train.batch_size=4", "train.steps=12",
        "train.device=cpu", "train.validation_tokens=100", "cluster.grace=20", *overrides,
    ]  # fmt: skip
    done = box.ablate("launch", *words, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return StudyDir(folder / "runs/two")


@pytest.mark.parametrize("name", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_trial_on_two_nodes_runs_to_its_end(name: str, box: Box, tmp_path: Path) -> None:
    study = launch(box, tmp_path, f"parallel={name}", "cluster.nodes=2", "cluster.heal=false")
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
        # Accounting may lag behind the queue.
        box.until(lambda job=job: box.history(job)[-1:] == [("COMPLETED", "0:0")], 60)
        assert json.loads(trial.summary_path.read_text())["processes"] == 2


@pytest.mark.slow
def test_two_tasks_on_each_of_two_nodes_stop_at_one_step_when_preempted_and_go_on(
    box: Box, tmp_path: Path
) -> None:
    """One task a GPU, without torchrun; SLURM signals each of them when it likes."""
    more = ("cluster.nodes=2", "cluster.gpus=2", "cluster.cpus=2", "cluster.partition=low",
            "cluster.heal=false", "cluster.parallel=1", "+cluster.sbatch.nodelist='n[1-2]'",
            "train.steps=300", "train.checkpoint_every=1000")  # fmt: skip
    study = launch(box, tmp_path, *more)
    trial = study.trials()[0]
    box.until(lambda: (trial.latest_row() or {}).get("step", 0) > 20, 120, "for its steps")
    words = ("-p", "high", "-w", "n2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")
    box.run("sbatch", *words)
    box.until(lambda: all(t.state().status == "done" for t in study.trials()), 300)
    first, second = trial.attempts()
    stopped = first.own_state()
    assert stopped is not None
    assert (stopped.status, stopped.outcome) == ("preempted", "preempted")
    assert second.record()["resumed"] == {"attempt": 1, "step": stopped.step}
    assert [r["step"] for r in trial.stitched()] == list(range(1, 301))
    assert next(e["processes"] for e in trial.stitched(EVENTS) if e["kind"] == "start") == 4


@pytest.mark.slow
def test_torchrun_starts_the_processes_of_a_trial_too(tmp_path: Path, box: Box) -> None:
    (tmp_path / "text").mkdir()
    for i in range(20):
        (tmp_path / f"text/{i}.txt").write_text(f"{i} and the lord said unto them " * (20 + i))
    words = ("size=tiny", "parallel=ddp", "data.path=text", "data.cache_dir=cache",
             "model.max_sequence_length=32", "train.batch_size=4", "train.steps=12",
             "train.device=cpu", "train.validation_tokens=100")  # fmt: skip
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    box.run(sys.executable, *torchrun, "-m", "ablate", "train", *words, cwd=tmp_path, timeout=200)
    (trial,) = StudyDir(tmp_path / "runs/train").trials()
    assert (trial.state().status, len(trial.attempts())) == ("done", 1)
    assert json.loads(trial.summary_path.read_text())["processes"] == 2
