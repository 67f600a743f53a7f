"""`ablate train -m hydra/launcher=slurm`, and the stock launcher, on a real cluster."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_box import Box
from user_code import BROKEN_NORM, small_trial, write_asking

from ablate.rundir import StudyDir

pytestmark = pytest.mark.slurm


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Overrides of a small trial."""
    return [*small_trial(tmp_path, steps=10), "train.validation_tokens=128", "study=s"]


SLURM = ("hydra/launcher=slurm", "cluster.time=20m", "cluster.memory=500M")


def start(box: Box, folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ablate", "train", "-m", *words],
        cwd=folder,
        env={**box.environment, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def statuses(study: StudyDir) -> list[str]:
    return sorted(t.live_state().status for t in study.trials())


def submitted(study: StudyDir) -> list[str]:
    """Ids of trials, as often as they were submitted."""
    return [id for s in study.submissions() for task in s.tasks for id in task]


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_pain_01_a_lost_client_loses_no_trial(
    box: Box, tmp_path: Path, words: list[str], how: signal.Signals
) -> None:
    """All jobs are out before it waits; the same command afterwards only collects."""
    study, arms = StudyDir(tmp_path / "runs" / "s"), "position=rope,alibi"
    client = start(box, tmp_path, *words, *SLURM, arms, "seed=0,1")
    box.until(lambda: study.path.exists() and study.submissions(), 120, "to submit")
    box.until(lambda: submitted(study), 60)
    os.killpg(client.pid, how)
    _, err = client.communicate(timeout=60)
    if how is signal.SIGINT:
        assert client.returncode == 130
        assert "The jobs go on" in err
    assert len(submitted(study)) == 4
    box.until(lambda: statuses(study) == ["done"] * 4, 240, "for the orphaned jobs")
    again = start(box, tmp_path, *words, *SLURM, arms, "seed=0,1")
    out, err = again.communicate(timeout=200)
    assert again.returncode == 0, out + err
    assert len(submitted(study)) == 4
    assert [len(t.attempts()) for t in study.trials()] == [1] * 4


def test_pain_02_a_failed_trial_is_a_failure_here_and_in_slurm(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "broken_norms.py").write_text(BROKEN_NORM)
    norms = "model.layer_norm_type=broken_norms:Norm,rms"
    client = start(box, tmp_path, *words, *SLURM, norms)
    out, err = client.communicate(timeout=300)
    study = StudyDir(tmp_path / "runs/s")
    assert client.returncode == 1, out + err
    assert statuses(study) == ["done", "failed"]
    assert "this norm is broken" in err
    assert "attempts/1/log" in err
    failed = next(t for t in study.trials() if t.state().status == "failed")
    job = str(failed.state().job_id)
    box.until(lambda: box.history(job) and box.history(job)[-1][0] == "FAILED", 30, "for sacct")


def test_pain_14_two_clients_in_the_same_second_submit_and_run_every_trial_once(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    command = (*words, *SLURM, "position=rope,alibi")
    for client in [start(box, tmp_path, *command), start(box, tmp_path, *command)]:
        out, err = client.communicate(timeout=300)
        assert client.returncode == 0, out + err
    study = StudyDir(tmp_path / "runs/s")
    assert statuses(study) == ["done", "done"]
    assert [len(t.attempts()) for t in study.trials()] == [1, 1]
    assert len(submitted(study)) == 2


@pytest.mark.slow
def test_pain_16_a_multirun_again_submits_what_is_missing(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    command = (*words, *SLURM, "position=rope,alibi,none")
    out, err = start(box, tmp_path, *command).communicate(timeout=300)
    study = StudyDir(tmp_path / "runs/s")
    assert statuses(study) == ["done"] * 3, out + err
    gone, *kept = study.trials()
    before = {t.id: t.metrics_path.stat().st_mtime_ns for t in kept}
    shutil.rmtree(gone.path)
    out, err = start(box, tmp_path, *command).communicate(timeout=300)
    assert statuses(study) == ["done"] * 3, out + err
    assert submitted(study)[3:] == [gone.id]
    assert {t.id: t.metrics_path.stat().st_mtime_ns for t in kept} == before


def test_pain_19_a_dry_run_shows_what_would_be_asked_of_slurm(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    more = ("position=rope,alibi", "cluster.partition=low", "cluster.gpus=1", "--dry-run")
    client = start(box, tmp_path, *words, *SLURM, *more)
    out, err = client.communicate(timeout=120)
    assert client.returncode == 0, out + err
    assert "hydra/launcher=slurm" in out
    assert "partition low" in out
    assert "1 GPU" in out
    assert "20m" in out
    assert not (tmp_path / "runs").exists()
    assert not box.active()


@pytest.mark.slow
def test_a_sweeper_that_optimises_gets_its_values_from_slurm(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    write_asking(tmp_path)
    path = os.pathsep.join([str(tmp_path), box.environment["PYTHONPATH"]])
    client = start(box, tmp_path, *words, *SLURM, "hydra/sweeper=asking", PYTHONPATH=path)
    out, err = client.communicate(timeout=300)
    assert client.returncode == 0, out + err
    losses = [(t.summary() or {})["val/loss"] for t in StudyDir(tmp_path / "runs/s").trials()]
    line = next(line for line in out.splitlines() if line.startswith("BEST 1e-2"))
    assert len(losses) == 3
    assert all(str(loss) in line for loss in losses)


@pytest.mark.slow
def test_designs_on_slurm_are_the_study_of_their_sweep(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps/two.yaml").write_text(
        "# @package _global_\nsweep:\n  question: Does it help?\n"
        "  factors: {position: [position=rope]}\n  seeds: 2\n"
    )
    sweep = ("hydra/sweeper=ablate", "sweep=two")
    client = start(box, tmp_path, *words[:-1], *SLURM, *sweep)
    out, err = client.communicate(timeout=300)
    assert client.returncode == 0, out + err
    study = StudyDir(tmp_path / "runs/two")
    assert study.manifest()["design"] == "one_factor"
    assert statuses(study) == ["done"] * 4


@pytest.mark.slow
def test_the_stock_submitit_launcher_runs_our_trials_too(
    box: Box, tmp_path: Path, words: list[str]
) -> None:
    """Its jobs say COMPLETED whatever happens inside; the trial's own state is honest."""
    (tmp_path / "broken_norms.py").write_text(BROKEN_NORM)
    stock = ("hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=20",
             "hydra.launcher.mem_gb=1", "hydra.launcher.cpus_per_task=1")  # fmt: skip
    norms = "model.layer_norm_type=rms,broken_norms:Norm"
    path = os.pathsep.join([str(tmp_path), box.environment["PYTHONPATH"]])
    client = start(box, tmp_path, *words, *stock, norms, PYTHONPATH=path)
    out, err = client.communicate(timeout=300)
    assert client.returncode == 1, out + err
    assert "this norm is broken" in err
    assert statuses(StudyDir(tmp_path / "runs/s")) == ["done", "failed"]


def forget_everything(box: Box) -> None:
    """The controller dies before it has saved anything."""
    box.kill_daemon("slurmctld")
    for path in (box.path / "state").glob("job_state*"):
        path.unlink()
    box.start_daemon("slurmctld")
    box.until(lambda: box.call("squeue", "-h").returncode == 0, 60, "for the controller")


@pytest.mark.slow  # three leases until jobs that nobody knows are given up
def test_what_slurm_forgot_is_submitted_again_by_the_client_that_waits(
    box: Box, tmp_path: Path
) -> None:
    """One trial runs and one is held in the queue; their feeder is forgotten too."""
    lease = {"ABLATE_LEASE_SECONDS": "6"}
    words = [*small_trial(tmp_path, steps=2000), "train.checkpoint_every=20", "study=s",
             "cluster.parallel=1"]  # fmt: skip
    client = start(box, tmp_path, *words, *SLURM, "position=rope,alibi", **lease)
    study = StudyDir(tmp_path / "runs" / "s")
    box.until(lambda: study.path.exists() and submitted(study), 120, "to submit")
    box.until(lambda: any((t.latest_row() or {}).get("step", 0) > 30 for t in study.trials()), 120)
    forget_everything(box)
    out, err = client.communicate(timeout=400)
    assert client.returncode == 0, out + err
    assert "SLURM has forgotten" in err
    assert statuses(study) == ["done", "done"]
    for trial in study.trials():
        assert [r["step"] for r in trial.stitched()] == list(range(1, 2001))
        ends = [own.status for a in trial.attempts() if (own := a.own_state())]
        assert ends.count("done") == 1
