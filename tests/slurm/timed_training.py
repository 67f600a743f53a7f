"""The training itself, which notes when its loop began and ended."""

from __future__ import annotations

import json
import time
from typing import Any

from ablate.rundir import Attempt, TrialDir
from ablate.train import run_trial, trial

RUNNER = "timed_training:run"
FILE = "timed.json"

train = trial.train


def run(attempt: Attempt, config: dict[str, Any], **more: Any) -> Any:
    def timed(*words: Any) -> Any:
        began = time.time()
        try:
            return train(*words)
        finally:
            (attempt.path / FILE).write_text(json.dumps([began, time.time()]))

    trial.train = timed
    return run_trial(attempt, config, **more)


def between(trials: list[TrialDir], slots: int) -> float:
    """Seconds of a slot between the training of one trial and of the next, on average."""
    spans = [json.loads((t.path / "attempts/1" / FILE).read_text()) for t in trials]
    firsts, lasts = sorted(s[0] for s in spans)[:slots], sorted(s[1] for s in spans)[-slots:]
    trained = sum(end - began for began, end in spans)
    return (sum(lasts) - sum(firsts) - trained) / (len(spans) - slots)
