"""What srun starts, without a cluster: submitit's files, exit codes, and early signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_node import make_study
from submitit.core.utils import DelayedSubmission, pickle_load

from ablate.config.schema import ClusterConfig
from ablate.launch import stop
from ablate.launch.job import run_job
from ablate.launch.slurm import ending, task
from ablate.launch.slurm.ending import Facts
from ablate.launch.slurm.identity import SlurmJob
from ablate.launch.slurm.states import NOT_NOW

ROOT = Path(__file__).parents[2]
MODULE = """\
import os, signal, sys, time

def modules():
    return sorted(m for m in ("submitit", "torch", "pandas", "ssl") if m in sys.modules)

def fail():
    raise ValueError("struck")

def not_now():
    raise SystemExit(75)

def warned():
    from ablate.launch.stop import heard
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR2)
    return heard()
"""


def started(folder: Path, name: str) -> tuple[int, Path]:
    """Exit code of the job, and where its result is."""
    (folder / "functions.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    try:
        import functions  # type: ignore[import-not-found]

        DelayedSubmission(getattr(functions, name)).dump(folder / "7_3_submitted.pkl")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("functions", None)
    job = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "ablate.launch.slurm.start", str(folder)],
        env={**os.environ, **job, "SLURM_PROCID": "0", "PYTHONPATH": f"{ROOT}:{folder}"},
        timeout=60,
        check=False,
        capture_output=True,
    )
    return done.returncode, folder / "7_3_0_result.pkl"


def test_a_pickled_function_runs_without_what_it_does_not_need(tmp_path: Path) -> None:
    code, result = started(tmp_path, "modules")
    assert (code, pickle_load(result)) == (0, ("success", []))


def test_an_exception_is_kept_and_is_exit_code_1(tmp_path: Path) -> None:
    code, result = started(tmp_path, "fail")
    kind, text = pickle_load(result)
    assert (code, kind) == (1, "error")
    assert "ValueError: struck" in text


def test_an_exit_code_is_handed_on_and_is_no_result(tmp_path: Path) -> None:
    code, result = started(tmp_path, "not_now")
    assert code == NOT_NOW
    assert not result.exists()


def test_a_signal_before_anybody_listens_is_remembered(tmp_path: Path) -> None:
    code, result = started(tmp_path, "warned")
    assert (code, pickle_load(result)) == (0, ("success", "stopped by SIGTERM"))


def test_a_trial_that_is_warned_before_it_listens_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "_early", [signal.SIGUSR2])
    (trial,) = make_study(tmp_path / "s", {"a": {}}).trials()
    state = run_job(trial, run=lambda *_, **__: pytest.fail("it began"))
    assert (state.status, state.outcome) == ("preempted", "preempted")
    assert "SIGUSR2" in (state.reason or "")


@pytest.mark.parametrize(("stopped", "asked"), [("stopped by SIGUSR2", True), (None, False)])
def test_a_pack_that_is_stopped_before_its_first_trial_starts_again(
    stopped: str | None, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requeued: list[str] = []
    facts = Facts(state="RUNNING", restarts=0, requeue=True, end=None, preempted=1.0)
    again: Callable[[str], Any] = lambda raw: requeued.append(raw) or True  # noqa: E731
    monkeypatch.setattr(ending, "ask", lambda raw: facts)
    monkeypatch.setattr(ending, "requeue", again)
    study = make_study(tmp_path / "s", {"a": {}, "b": {}})
    job = SlurmJob(job_id="7_3", raw_id="9", restart=0, node="n1", step=None, end=None)
    conclude = lambda: task.conclude(study, study.trials(), ClusterConfig(pack=2), job, stopped)  # noqa: E731
    if asked:
        assert "preempted" in conclude()
    else:
        with pytest.raises(SystemExit):
            conclude()
    assert requeued == ["9"] * asked
