"""Runs a trial here and reads what it wrote."""

from __future__ import annotations

from typing import Any

import torch

from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.checkpoint import load_model_state

CPU = torch.device("cpu")


def run(trial: TrialDir, config: dict[str, Any], **arguments):
    trial.create(config, config["train"]["steps"])
    return run_trial(trial.acquire(), config, **arguments)


def rows(trial: TrialDir) -> list[dict[str, Any]]:
    return list(trial.stitched())


def events(trial: TrialDir, kind: str) -> list[dict[str, Any]]:
    return [e for e in trial.stitched("events.jsonl") if e["kind"] == kind]


def weights(trial: TrialDir, step: int) -> dict[str, torch.Tensor]:
    attempt = trial.newest_attempt()
    assert attempt is not None
    return load_model_state(attempt.checkpoint_path(step))
