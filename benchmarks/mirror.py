"""What a training step loses to `track=wandb`: with a server that hangs, one that answers, none.

    python -m benchmarks.mirror [--steps 3000] [--rounds 2]

Everything is as in `ablate train` (lease, heartbeat, log, mirror process) but the model: a step is
a fixed piece of work on one thread, so that a delay is seen. The time between two rows is a step.
The rounds alternate, so that a busy machine meets all alike.
"""

from __future__ import annotations

import argparse
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as train.threads: before NumPy is imported

import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ablate.rundir import Attempt, append_lines
from ablate.rundir.names import METRICS

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests" / "track"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    from stand_in import Server

    hanging = socket.create_server(("127.0.0.1", 0))
    server = Server()
    places = {
        "local": None,
        "hangs": f"http://127.0.0.1:{hanging.getsockname()[1]}",
        "answers": server.url,
    }
    os.environ["WANDB_API_KEY"] = "local" + "0" * 35
    steps: dict[str, list[float]] = {name: [] for name in places}
    ends: dict[str, list[float]] = {name: [] for name in places}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds + 1):
            for name, url in places.items():
                if number == 0 and name != "local":
                    continue  # the first round warms up
                taken, end = one(Path(folder), name, url, number, options.steps)
                if number:
                    steps[name] += taken
                    ends[name].append(end)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and sum(
            bool(run.exit_codes) for run in server.runs.values()
        ) < len(ends["answers"]):
            time.sleep(0.5)
        time.sleep(1)
    base = np.array(steps["local"]) * 1e3
    print("a step, ms        median    90 %    99 %  longest  | after the last row, s")
    for name, taken in steps.items():
        ms = np.array(taken) * 1e3
        q = np.percentile(ms, [50, 90, 99, 100])
        print(f"{name:<12}" + "".join(f"{v:9.2f}" for v in q) + f"  | {max(ends[name]):.2f}")
    for name in ("hangs", "answers"):
        ms = np.array(steps[name]) * 1e3
        shift = np.median(ms) - np.median(base)
        print(f"{name}: median step {shift:+.3f} ms, mean {ms.mean() - base.mean():+.3f} ms")
    print("rows that arrived:", sorted(len(run.history) for run in server.runs.values()))


def one(
    folder: Path, name: str, url: str | None, number: int, steps: int
) -> tuple[list[float], float]:
    """Seconds of each step but the first ten, and from the last row to the end of the trial."""
    from ablate.config.fingerprint import trial_id
    from ablate.launch.job import run_job
    from ablate.rundir import StudyDir

    os.environ["WANDB_BASE_URL"] = url or "http://127.0.0.1:9"
    track = {"name": "wandb" if url else "local", "project": "demo", "entity": None}
    config = {"seed": number, "train": {"steps": steps}, "track": {**track, "mode": "auto"}}
    study = StudyDir(folder / name)
    trial = study.trial(trial_id(name, config))
    trial.create(config, steps)
    stamps: list[float] = []
    state = run_job(trial, run=train, on_row=lambda row: stamps.append(time.perf_counter()))
    if state.status != "done":
        sys.exit("interrupted")
    end = time.perf_counter() - stamps[-1]
    return np.diff(stamps)[10:].tolist(), end


@dataclass
class Ran:
    status: str
    step: int
    summary: dict[str, Any]
    reason: str | None = None


def train(
    attempt: Attempt,
    config: dict[str, Any],
    *,
    should_stop: Callable[[], str | None],
    on_row: Callable[[dict[str, Any]], None],
) -> Ran:
    """A few milliseconds of work a step, on one thread, and a row as training writes it."""
    matrix = np.random.default_rng(0).normal(size=(160, 160))
    log = attempt.open_log(METRICS)
    for step in range(1, config["train"]["steps"] + 1):
        for _ in range(4):
            matrix @ matrix
        row = {"step": step, "tokens": step * 1024, "train/loss": 5.0 / step, "lr": 1e-3}
        append_lines(log, [row])
        on_row(row)
        if reason := should_stop():
            return Ran("preempted", step, {}, reason)
    os.close(log)
    return Ran("done", config["train"]["steps"], {"val/bpb": 1.0})


if __name__ == "__main__":
    main()
