"""Small studies that were trained without torch, for mirrors of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_training import run

from ablate.config.fingerprint import fingerprint, trial_id
from ablate.launch.job import run_job
from ablate.rundir import StudyDir, TrialDir

KEY = "local" + "0" * 35
TRACK = {"name": "local", "project": "demo", "entity": None, "mode": "auto", "tags": ["mine"]}
LEVELS = {"base": {"position": "learned"}, "rope": {"position": "rope"}}


def make_study(
    path: Path,
    *,
    seeds: int = 1,
    steps: int = 30,
    arms: tuple[str, ...] = ("base", "rope"),
    track: str = "local",
    **fake: Any,
) -> StudyDir:
    """Planned: `train` runs its trials."""
    study = StudyDir(path / "runs" / "hello")
    entries = []
    for arm in arms:
        for seed in range(seeds):
            config = {
                "seed": seed,
                "train": {"steps": steps},
                "model": {"position": arm},
                "fake": fake,
                "track": {**TRACK, "name": track},
            }
            trial = study.trial(trial_id(arm, config))
            trial.create(config, steps)
            entries.append(
                {"id": trial.id, "arm": arm, "seed": seed, "fingerprint": fingerprint(config)}
            )
    reference = {"base": None, "rope": "base"}
    study.write_manifest(
        {
            "schema": 1,
            "study": "hello",
            "created": 1.5,
            "baseline": "base",
            "design": "one_factor",
            "decide": {"metric": "val/bpb", "smallest_effect": 0.01},
            "arms": [
                {
                    "name": arm,
                    "levels": LEVELS[arm],
                    "reference": reference[arm],
                    "parameters": 7,
                    "diff": {"model.position": ["base", arm]},
                }
                for arm in arms
            ],
            "trials": entries,
        }
    )
    return study


def train(study: StudyDir) -> StudyDir:
    for trial in study.trials():
        run_job(trial, run=run)
    return study


def append(trial: TrialDir, *rows: dict[str, Any]) -> None:
    """Rows that the newest attempt might have written."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    with open(trial.attempts()[-1].path / "metrics.jsonl", "a") as file:
        file.write(lines)


def lengthen(trial: TrialDir, to: int) -> None:
    start = max(losses(trial))
    append(
        trial,
        *({"step": s, "tokens": s * 10, "train/loss": 5.0 / s} for s in range(start + 1, to + 1)),
    )


def losses(trial: TrialDir) -> dict[int, float]:
    return {row["step"]: row["train/loss"] for row in trial.stitched()}


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return value
