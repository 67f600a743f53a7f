"""Studies of any size and state, made of files alone: no training."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ablate.config.fingerprint import fingerprint, trial_id
from ablate.rundir import State, StudyDir, TrialDir, write_summary

STEPS = 100


def make_study(path: Path, arms: int = 2, seeds: int = 2, **more: Any) -> StudyDir:
    """All trials pending, each with its folder and configuration."""
    study, entries = StudyDir(path), []
    for arm in range(arms):
        for seed in range(seeds):
            config = {"seed": seed, "train": {"steps": STEPS}, "name": f"arm{arm}", "cluster": {}}
            trial = study.trial(trial_id(f"arm{arm}", config))
            trial.create(config, STEPS)
            entries.append(
                {
                    "id": trial.id,
                    "arm": f"arm{arm}",
                    "seed": seed,
                    "fingerprint": fingerprint(config),
                }
            )
    manifest = {"schema": 1, "study": study.name, "question": "Which arm?", "design": "one_factor"}
    with study.lock():
        study.write_manifest({**manifest, "arms": [], "trials": entries, "created": 1.0, **more})
    return study


def start(
    trial: TrialDir,
    step: int = 10,
    job_id: str | None = None,
    age: float = 0.0,
    again: tuple[str, ...] = (),
) -> Any:
    """An attempt of this process that has come to `step`; `age` seconds ago, on another machine."""
    attempt = trial.acquire(job_id=job_id, again=again)
    rows = [
        {"step": s, "train/loss": 5.0 / s, "tokens": 64 * s, "tokens_per_second": 640.0}
        for s in range(1, step + 1)
    ]
    (attempt.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (attempt.path / "log").write_text(f"log of {trial.id}\n")
    if age:
        elsewhere(attempt, age)
    return attempt


def elsewhere(attempt: Any, age: float) -> None:
    """As if another machine ran the attempt, and touched its lease `age` seconds ago."""
    path, then = attempt.path / "attempt.json", time.time() - age
    record = {**json.loads(path.read_text()), "host": "n7", "node": "n7", "time": then - 60}
    path.write_text(json.dumps(record))
    os.utime(attempt.path / "lease", (then, then))
    state = attempt.trial.state()
    attempt.trial.write_state(state.replace(host="n7", heartbeat=then, started=then - 60))


def end(trial: TrialDir, status: str = "done", step: int = STEPS, **more: Any) -> None:
    """An attempt that ended so."""
    attempt = start(trial, step, again=more.pop("again", ()))
    state = State(status=status, outcome=status, step=step, steps=STEPS, ended=time.time())
    attempt.release(state.replace(**more))
    if status == "done":
        last = [5.0 / s for s in range(STEPS - STEPS // 10 + 1, STEPS + 1)]
        write_summary(attempt, {"train/loss": sum(last) / len(last), "seconds": 3.0})


def checkpoint(attempt: Any, step: int, size: int = 1000) -> Path:
    (attempt.begin_checkpoint(step) / "train.pt").write_bytes(b"x" * size)
    return attempt.commit_checkpoint(step)


def mixed(path: Path, arms: int = 3, seeds: int = 3) -> StudyDir:
    """One of each status, and one whose process is gone."""
    study = make_study(path, arms, seeds)
    trials = study.trials()
    end(trials[0])
    end(trials[1], "failed", 7, outcome="code", reason="ZeroDivisionError: division by zero")
    end(trials[2], "diverged", 9, reason="loss nan")
    start(trials[3], 20)
    start(trials[4], 30, age=5.0)
    start(trials[5], 30, age=500.0)
    return study
