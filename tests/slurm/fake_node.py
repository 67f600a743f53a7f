"""A training without torch for tests on the cluster: a row a step, a checkpoint every so many."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_training import FakeResult, fail

from ablate.config.fingerprint import trial_id
from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.submit import submit
from ablate.rundir import Attempt, StudyDir, Submission, TrialDir

RUNNER = "fake_node:run"


def run(
    attempt: Attempt,
    config: dict[str, Any],
    *,
    should_stop: Callable[[], str | None],
    on_row: Callable[[dict[str, Any]], None],
) -> FakeResult:
    """`fake` in the configuration: pause (seconds a step), every (steps between checkpoints),
    deaf (notices no wish to stop), show (a variable), ill (a node that kills at step 5); and once,
    unless always: fail_at (how), exit_at, hog_at, kill_at (with signal).
    """
    fake, steps = config["fake"], config["train"]["steps"]
    found = attempt.trial.newest_checkpoint()
    start = found[1] if found else 0
    if found:
        attempt.resumed_from(found[0].number, start)
    if "show" in fake:
        (attempt.path / "shown").write_text(json.dumps({fake["show"]: os.environ[fake["show"]]}))
    for step in range(start + 1, steps + 1):
        time.sleep(fake.get("pause", 0.0))
        row = {"step": step, "train/loss": 5 / step, "tokens": step, "tokens_per_second": 1.0}
        attempt.append("metrics.jsonl", row)
        on_row(row)
        first = attempt.number == 1 or fake.get("always")
        if step == 5 and os.environ.get("SLURMD_NODENAME") == fake.get("ill", 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == fake.get("exit_at") and first:
            os._exit(3)
        if step == fake.get("hog_at") and first:
            hog = bytearray(fake["hog"])  # noqa: F841 (held while the next steps run)
        if step == fake.get("kill_at") and first:
            os.kill(os.getpid(), fake.get("signal", signal.SIGKILL))
        if step == fake.get("fail_at") and first:
            raise fail(fake.get("how", "code"), step)
        reason = None if fake.get("deaf") else should_stop()
        if reason or step == steps or step % fake.get("every", 10) == 0:
            attempt.begin_checkpoint(step)
            attempt.commit_checkpoint(step)
        if reason and step < steps:
            return FakeResult("preempted", step, reason=reason)
    return FakeResult("done", steps, summary={"val/bpb": 5 / steps, "steps": steps})


def make_study(path: Path, trials: dict[str, dict[str, Any]], steps: int = 20) -> StudyDir:
    """A study of fakes: name of the arm -> its `fake` section."""
    study, entries = StudyDir(path), []
    for name, fake in trials.items():
        config = {"seed": 0, "train": {"steps": fake.pop("steps", steps)}, "fake": fake}
        trial = study.trial(trial_id(name, config))
        trial.create(config, config["train"]["steps"])
        entries.append({"id": trial.id, "arm": name, "seed": 0})
    with study.lock():
        study.write_manifest({"schema": 1, "study": study.name, "arms": [], "trials": entries})
    return study


def steps_of(trial: TrialDir) -> list[int]:
    return [row["step"] for row in trial.stitched()]


def outcomes_of(trial: TrialDir) -> list[str | None]:
    """How each attempt ended, oldest first."""
    return [own.outcome if (own := a.own_state()) else None for a in trial.attempts()]


FAST: dict[str, Any] = {"name": "slurm", "time": "20m", "memory": "200M"}


def launch(study: StudyDir, *, hold: bool = False, **cluster: Any) -> list[Submission]:
    """Submits what is missing, as `ablate launch` does; `cluster` changes FAST."""
    given = ClusterConfig(**{**FAST, **cluster})
    return submit(
        study,
        study.trials(),
        given,
        command="ablate launch ...",
        hold=hold,
        runner=RUNNER,
        cwd=study.path.parent,
    )


def statuses(study: StudyDir) -> list[str]:
    return [t.live_state().status for t in study.trials()]


def all_done(study: StudyDir) -> bool:
    return set(statuses(study)) == {"done"}
