"""What a training step loses to `track=wandb`: with a server that hangs, one that answers, none.

    python -m benchmarks.mirror [--steps 400] [--rounds 3]

A real model (size=tiny, King James Bible bytes) is trained for real; the time between two rows is
a step. The rounds alternate, so that a busy machine meets all alike.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests" / "track"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
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
                taken, end = one(Path(folder), name, url, number, options.steps)
                if number:  # the first round warms up
                    steps[name] += taken
                    ends[name].append(end)
        time.sleep(7)  # mirrors that are still trying give up
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
    from ablate.config.compose import Composer
    from ablate.config.fingerprint import trial_id
    from ablate.launch.job import run_job
    from ablate.plan import resolve
    from ablate.rundir import StudyDir

    os.environ["WANDB_BASE_URL"] = url or "http://127.0.0.1:9"
    words = ["size=tiny", f"train.steps={steps}", f"seed={number}"]
    if url:
        words.append("track=wandb")
    config = resolve(Composer().compose(words))
    study = StudyDir(folder / name)
    trial = study.trial(trial_id(name, config))
    trial.create(config, steps)
    stamps: list[float] = []
    run_job(trial, on_row=lambda row: stamps.append(time.perf_counter()))
    end = time.perf_counter() - stamps[-1]
    taken = np.diff(stamps)[10:-1]
    return taken.tolist(), end


if __name__ == "__main__":
    main()
