"""Runs one attempt of a trial for each request on standard input, in a process of its own.

A request may name the point at which that process ends itself with SIGKILL: nothing catches it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ablate.rundir import Attempt, TrialDir
from ablate.train import checkpoint, loop, run_trial, trial
from ablate.train.record import Record

LONGEST = 200.0
"""Seconds of an attempt; one that hangs is killed, which its test was not told to expect."""


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> Any:
    """Prepares the kill; returns the on_row of the trial."""
    where, _, number = point.partition(":")
    if where == "outside":
        return None
    at = int(number or 0)
    if where == "after_row":
        return lambda row: die() if row["step"] == at else None
    if where == "in_row":

        def half_a_row(self: Record, rows: Sequence[dict[str, Any]]) -> None:
            for row in rows:
                line = json.dumps(row)
                if row["step"] == at:
                    os.write(self._metrics, line[: len(line) // 2].encode())
                    die()
                os.write(self._metrics, line.encode() + b"\n")

        Record.rows = half_a_row  # type: ignore[method-assign]
    elif where == "in_save":
        save, calls = torch.save, [0]

        def half_a_file(value: Any, path: Path) -> None:
            calls[0] += 1
            save(value, path)
            if calls[0] == at:
                os.truncate(path, path.stat().st_size // 2)
                die()

        torch.save = half_a_file
    elif where == "before_commit":
        Attempt.commit_checkpoint = die  # type: ignore[method-assign,assignment]
    elif where == "after_commit":
        checkpoint.prune = die  # type: ignore[assignment]
    elif where == "in_validation":
        loop.validate = die  # type: ignore[assignment]
    elif where == "in_resume":
        Attempt.resumed_from = die  # type: ignore[method-assign,assignment]
    elif where == "in_summary":
        trial.summarise = die  # type: ignore[assignment]
    else:
        raise ValueError(point)
    return None


def kill_when_written(child: int, trial: Path, rows: int, delay: float) -> None:
    """Kills `child` once its attempts have `rows` rows, `delay` seconds later: wherever it is then.

    By rows and not by the clock, since how long a trial takes depends on what runs beside it.
    """
    while sum(p.read_bytes().count(b"\n") for p in trial.glob("attempts/*/metrics.jsonl")) < rows:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)


def run(request: dict[str, Any]) -> None:
    folder = TrialDir(Path(request["trial"]))
    folder.create(request["config"], request["config"]["train"]["steps"])
    on_row = arm(request["kill"]) if request["kill"] else None
    result = run_trial(folder.acquire(), request["config"], on_row=on_row)
    (folder.path / "result.json").write_text(json.dumps(result.summary))


LATE = ("pyarrow.parquet", "yaml", "torch.utils._device", "torch.utils.serialization.config",
        "torch.profiler._cupti_monitor")  # fmt: skip
"""What each attempt would import when it first builds, trains and saves."""

for module in LATE:
    with contextlib.suppress(ImportError):  # not in every version of torch
        importlib.import_module(module)
gc.collect()
gc.freeze()  # attempts share these pages

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            run(request)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    where, *numbers = (request["kill"] or "").split(":")
    if where == "outside":
        kill_when_written(child, Path(request["trial"]), int(numbers[0]), float(numbers[1]))
    end = time.monotonic() + LONGEST
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    print(os.waitstatus_to_exitcode(ended[1]), flush=True)
