"""A large study: 1,000 trials of 10,000 steps, loaded and reported.

    python -m benchmarks.report --runs FOLDER [--trials 1000] [--steps 10000]

Writes the study once (a third of a gigabyte) by what writes a trial's end; the logs of attempts,
which are not read, are left out. Then it measures `load` and `ablate report` in fresh processes:
seconds, CPU seconds, peak memory, size of the page. Nothing is kept between two loads; "from the
disk", the system has let go of the files' contents, which else lie in its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ablate.config.compose import Composer
from ablate.launch.stitch import write_table
from ablate.plan import resolve
from ablate.rundir import State, StudyDir, write_summary

SEEDS = 5
BARS = {"report": 20.0, "memory": 3.0, "page": 15.0, "load": 1.0}
LOAD = "import sys, time; from ablate.analysis import load; t = time.perf_counter(); \
f = load(sys.argv[1], columns=sys.argv[2:] or None); print(time.perf_counter() - t, len(f.curves))"
FIVE = ["tokens", "train/loss", "train/grad_norm", "val/loss"]
"""With the step, as many columns as other readers were measured with."""


def write(path: Path, trials: int, steps: int) -> None:
    """Through the on-disk contract: configuration, state, summary, stitched record, events."""
    study, rng = StudyDir(path), np.random.default_rng(0)
    arms = [f"arm{i:03d}" for i in range(trials // SEEDS)]
    entries = []
    template = resolve(Composer().compose(["size=tiny", f"train.steps={steps}"]))
    for i, arm in enumerate(arms):
        for seed in range(SEEDS):
            id = f"{arm}-s{seed}-{i:08x}"
            entries.append({"id": id, "arm": arm, "seed": seed, "lr": None, "fingerprint": id})
            trial = study.trial(id)
            config = {**template, "seed": seed, "model": {**template["model"], "n_heads": i + 1}}
            trial.create(config, steps)
            attempt = trial.acquire()
            table, final = curve(rng, steps, 0.001 * (i % 7))
            write_table(table, trial.metrics_path)
            event = {"kind": "spike", "step": steps // 2, "start": steps // 2, "height": 1.0}
            trial.events_path.write_text(json.dumps(event) + "\n", encoding="utf-8")
            last = float(np.mean(table["train/loss"].to_numpy()[-(steps // 10) :]))
            write_summary(attempt, summary(final, last, steps))
            attempt.release(State(status="done", outcome="done", step=steps, steps=steps))
    study.write_manifest(manifest(path.name, arms, entries, steps))


def curve(rng: np.random.Generator, steps: int, offset: float) -> tuple[pa.Table, float]:
    step = np.arange(1, steps + 1)
    level = 2.0 + offset + 3.0 * (1 - step / steps) ** 3
    val = np.where(step % (steps // 20) == 0, level + rng.normal(0, 0.002, steps), np.nan)
    columns = {
        "step": step,
        "tokens": step * 65536,
        "train/loss": level + rng.normal(0, 0.05, steps),
        "train/grad_norm": np.exp(rng.normal(0, 0.2, steps)),
        "train/update_norm": np.exp(rng.normal(-5, 0.2, steps)),
        "lr": 1e-3 * np.minimum(1, step / 200),
        "tokens_per_second": 1e5 * np.exp(rng.normal(0, 0.02, steps)),
        "val/loss": val,
        "val/bpb": val / np.log(2),
    }
    table = pa.table({k: pa.array(v, from_pandas=True) for k, v in columns.items()})
    return table, float(val[-1])


def summary(final: float, last: float, steps: int) -> dict[str, object]:
    return {
        "val/loss": final,
        "val/bpb": final / float(np.log(2)),
        "train/loss": last,
        "steps": steps,
        "tokens": steps * 65536,
        "seconds": 4000.0,
        "tokens_per_second": 1e5,
        "parameters": 10_000_000,
        "flops": 4e15,
        "data_fingerprint": "d" * 64,
        "device": "cpu",
        "torch": "2.13.0",
    }


def manifest(
    name: str, arms: Sequence[str], entries: Sequence[dict], steps: int
) -> dict[str, object]:
    return {
        "schema": 1,
        "study": name,
        "created": 1.7e9,
        "revision": 1,
        "question": "Is a study of a thousand trials still usable?",
        "design": "one_factor",
        "baseline": arms[0],
        "decide": {"metric": "val/bpb", "smallest_effect": 0.005, "correction": "holm"},
        "budget": {"steps": steps, "tokens": steps * 65536},
        "factors": {"heads": list(arms[1:])},
        "arms": [
            {
                "name": a,
                "overrides": [f"model.n_heads={i + 1}"],
                "levels": {"heads": a},
                "reference": arms[0] if i else None,
                "diff": {"model.n_heads": [1, i + 1]} if i else {},
                "parameters": 10_000_000 + i,
                "flops_per_token": 60_000_000,
            }
            for i, a in enumerate(arms)
        ],
        "trials": list(entries),
    }


def measure(command: Sequence[str]) -> tuple[float, float, float, str]:
    """Seconds, CPU seconds and peak GiB of a fresh process, and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, after.ru_maxrss / 2**20, out


def let_go(path: Path) -> None:
    """Has the system forget the contents of all files below."""
    for folder, _, names in os.walk(path):
        for name in names:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(fd)  # what is not yet on the disk is not let go
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args(argv)
    path = options.runs / f"large-{options.trials}x{options.steps}"
    if not (path / "manifest.json").exists():
        start = time.perf_counter()
        write(path, options.trials, options.steps)
        print(f"written in {time.perf_counter() - start:.0f} s: {path}")
    say = lambda what, value, bar, unit: print(  # noqa: E731
        f"{what:<34} {value:8.2f} {unit:<4} (bar {bar:g})  {'pass' if value < bar else 'FAIL'}"
    )
    for count, columns in (("five", FIVE), ("all nine", [])):
        for where in ("memory", "memory", "memory", "the disk"):
            if where == "the disk":
                let_go(path)
            out = measure([sys.executable, "-c", LOAD, str(path), *columns])[3]
            say(f"load {count} columns, from {where}", float(out.split()[0]), BARS["load"], "s")
    command = [sys.executable, "-m", "ablate", "report", str(path), "--json"]
    seconds, cpu, peak, _ = measure(command)
    say(f"report ({cpu:.0f} s CPU)", seconds, BARS["report"], "s")
    say("  peak memory, largest process", peak, BARS["memory"], "GiB")
    say("page", os.path.getsize(path / "report" / "index.html") / 1e6, BARS["page"], "MB")


if __name__ == "__main__":
    main()
