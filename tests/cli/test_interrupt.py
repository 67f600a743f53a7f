"""`ablate launch` with real training, killed and interrupted: the same bits as undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from ablate.rundir import StudyDir

SWEEP = """\
# @package _global_
sweep:
  question: Does RoPE help?
  baseline: []
  factors:
    position: [position=rope]
  seeds: 1
"""

TIMES = ("tokens_per_second", "seconds", "peak_memory", "data_share", "time/")


def launch(words: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ablate", "launch", *words],
        cwd=cwd,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 300) -> int:
    _, err = process.communicate(timeout=seconds)
    print(err)
    return process.returncode


def record(study: StudyDir) -> dict[str, dict[str, list]]:
    """Trial -> its curves, without what depends on the clock."""
    return {
        t.id: {
            name: values
            for name, values in parquet.read_table(t.metrics_path).to_pydict().items()
            if not name.startswith(TIMES)
        }
        for t in study.trials()
    }


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_a_launch_that_is_killed_goes_on_bit_for_bit(
    tmp_path: Path, environment: dict[str, str], small: list[str], how: str
) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(SWEEP)
    words = ["sweep=mine", *small, "train.steps=150", "train.checkpoint_every=20"]
    assert finish(launch([*words, "study=whole"], tmp_path, environment)) == 0
    study = StudyDir(tmp_path / "runs" / "cut")
    process = launch([*words, "study=cut"], tmp_path, environment)
    deadline = time.monotonic() + 200
    while not (study.exists() and any((t.latest_row() or {}).get("step", 0) > 30
                                      for t in study.trials())):  # fmt: skip
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if how == "SIGKILL":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == (-signal.SIGKILL if how == "SIGKILL" else 130)
    assert any(t.live_state().status != "done" for t in study.trials())
    assert finish(launch([*words, "study=cut"], tmp_path, environment)) == 0
    assert any(len(t.attempts()) == 2 for t in study.trials())
    assert record(study) == record(StudyDir(tmp_path / "runs" / "whole"))
