"""Trials per hour: `ablate launch sweep=hello` against a shell loop over `ablate train`, and what
starting a trial costs in a running sweep.

    python -m benchmarks.hello [--steps 200] [--rounds 3]
    python -m benchmarks.hello --start

The same trials, one after the other, in alternation. The cost of starting is the time between two
ends of trials of a single step in one worker: everything but training (fork, lease, data, model,
the first step, validation on 256 tokens, checkpoint, record).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ablate.plan import Plan, plan_sweep
from ablate.rundir import StudyDir

ABLATE = [sys.executable, "-m", "ablate"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if options.start:
            say_start(Path(folder))
        else:
            say_ratio(Path(folder), options.steps, options.rounds)


def say_ratio(folder: Path, steps: int, rounds: int) -> None:
    words = ["sweep=hello", "sweep.seeds=1", f"train.steps={steps}"]
    plan, ratios = plan_sweep(words), []
    for number in range(rounds):
        launched = launch(folder / f"launch{number}", words)
        looped = loop(folder / f"loop{number}", plan)
        rates = [3600 * len(plan.trials) / seconds for seconds in (launched, looped)]
        ratios.append(rates[0] / rates[1])
        print(
            f"launch {rates[0]:6.0f} trials/h, loop {rates[1]:6.0f}, ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.2f} ({len(plan.trials)} trials a side, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})")  # fmt: skip


def launch(runs: Path, words: Sequence[str]) -> float:
    """Seconds, the start of the command included."""
    return timed([*ABLATE, "launch", *words, f"runs_dir={runs}"])


def loop(runs: Path, plan: Plan) -> float:
    """Seconds of the same trials, a command each."""
    return sum(
        timed([*ABLATE, "train", *overrides_of(plan, arm.name), f"runs_dir={runs}", "study=loop"])
        for arm in plan.arms
    )


def overrides_of(plan: Plan, arm: str) -> list[str]:
    """What makes the arm, its matched size included."""
    planned = plan.arm(arm)
    sized = [f"{field}={new}" for field, (_, new) in planned.resized.items()]
    base = [word for word in plan.base if not word.startswith("sweep=")]
    steps = f"train.steps={plan.steps}"
    return [*base, *planned.overrides, *sized, steps, f"seed={planned.config['seed']}"]


def timed(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def say_start(folder: Path) -> None:
    words = ["sweep=hello", "sweep.seeds=6", "train.steps=1", "train.validation_tokens=256"]
    launch(folder, [*words, "cluster.workers=1"])
    trials = StudyDir(folder / "hello").trials()
    ends = sorted(t.state().ended or 0.0 for t in trials)
    between = [b - a for a, b in itertools.pairwise(ends)]
    trained = [float((t.summary() or {})["seconds"]) for t in trials]
    cost = statistics.median(between) - statistics.median(trained)
    print(f"{len(trials)} trials: {1e3 * statistics.median(between):.0f} ms between two ends, of "
          f"which a step takes {1e3 * statistics.median(trained):.0f}: {cost:.3f} s to start "
          f"(load {os.getloadavg()[0]:.1f})")  # fmt: skip


if __name__ == "__main__":
    main()
