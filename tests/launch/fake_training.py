"""A training without torch that does what the `fake` section of its configuration says."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.config.fingerprint import fingerprint, trial_id
from ablate.errors import DataError, DivergedError
from ablate.rundir import Attempt, StudyDir, TrialDir

LOSS = 5.0


@dataclass
class FakeResult:
    status: str
    step: int
    summary: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


def run(
    attempt: Attempt,
    config: dict[str, Any],
    *,
    should_stop: Callable[[], str | None],
    on_row: Callable[[dict[str, Any]], None],
) -> FakeResult:
    fake, steps = config.get("fake", {}), config["train"]["steps"]
    every = fake.get("stop_every")
    found = attempt.trial.newest_checkpoint()
    start = 0
    if found is not None:
        start = found[1]
        attempt.resumed_from(found[0].number, start)
    for step in range(start + 1, steps + 1):
        time.sleep(fake.get("pause", 0.0))
        row = {"step": step, "train/loss": LOSS / step, "tokens": step * 10}
        if "cores" in fake:  # that this process may use
            row["cores"] = sorted(os.sched_getaffinity(0))
        if step == steps:
            row["val/bpb"] = LOSS / step
        attempt.append("metrics.jsonl", row)
        on_row(row)
        if step == fake.get("signal_at") or (every and step % every == 0):
            os.kill(os.getpid(), fake.get("signal", signal.SIGTERM))
        first_time = attempt.number == 1
        if step == fake.get("kill_at") and (first_time or fake.get("always")):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == fake.get("fail_at") and (first_time or fake.get("always")):
            raise fail(fake.get("how", "code"), step)
        reason = should_stop() if step < steps else None
        if reason or step == steps or step % 10 == 0:
            attempt.begin_checkpoint(step)
            attempt.commit_checkpoint(step)
        if reason:
            return FakeResult("preempted", step, reason=reason)
    if "linger" in fake:
        sys.stdout = Lingering(fake["linger"])
    return FakeResult("done", steps, summary={"val/bpb": LOSS / steps, "steps": steps})


class Lingering(io.StringIO):
    """Keeps the process, which flushes it last of all."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def flush(self) -> None:
        time.sleep(self.seconds)


def run_seated(
    attempt: Attempt, config: dict[str, Any], *, seat: Any = None, **arguments: Any
) -> FakeResult:
    """A member of a stack that does nothing together."""
    return run(attempt, config, **arguments)


def fail(how: str, step: int) -> BaseException:
    return {
        "code": ZeroDivisionError("division by zero"),
        "diverged": DivergedError(step, "loss nan"),
        "config": DataError("the data are too short."),
        "oom": RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        "memory": MemoryError(),
        "node": OSError(28, "No space left on device"),
        "crash": SystemExit("an extension called exit"),
    }[how]


def make_trial(
    study: Path, name: str = "arm", steps: int = 20, seed: int = 0, **fake: Any
) -> TrialDir:
    config = {"seed": seed, "train": {"steps": steps}, "fake": {**fake, "name": name}}
    trial = StudyDir(study).trial(trial_id(name, config))
    trial.create(config, steps)
    return trial


def make_study(path: Path, trials: list[TrialDir]) -> StudyDir:
    study = StudyDir(path)
    entries = [
        {"id": t.id, "arm": t.id.split("-s")[0], "seed": 0, "fingerprint": fingerprint(t.config())}
        for t in trials
    ]
    with study.lock():
        study.write_manifest({"schema": 1, "study": study.name, "arms": [], "trials": entries})
    return study
