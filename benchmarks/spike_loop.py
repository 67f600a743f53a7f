"""What watching costs the training loop a step: detector, events, the row, and the progress shown.

python -m benchmarks.spike_loop            # d = 128, four layers, 256 tokens a step, one thread
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ablate.cli.progress import progress_of_trial
from ablate.config.compose import Composer
from ablate.plan import resolve
from ablate.rundir import TrialDir
from ablate.train import loop, run_trial

STEPS = 100


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder)), indent=2))


def measure(folder: Path) -> dict[str, Any]:
    """Medians of CPU time over the steps from 24 on, where the detector judges."""
    words = ["size=1m", "model=olmo2", "data=kjv", f"train.steps={STEPS}"]
    words += ["train.validation_tokens=1000", "train.checkpoint_every=0", "train.device=cpu"]
    words += ["train.batch_size=4", "train.sequence_length=64"]  # short steps: the worst case
    config = resolve(Composer().compose(words))
    trial = TrialDir(folder / "trial")
    trial.create(config, STEPS)
    watched, ends = [], []
    watch = loop.watch

    def timed(run: Any, record: Any, row: dict[str, Any]) -> str | None:
        began = time.thread_time()
        why = watch(run, record, row)
        ends.append(time.thread_time())
        watched.append(ends[-1] - began)
        return why

    loop.watch = timed
    try:
        with progress_of_trial("trial", STEPS) as progress:
            run_trial(trial.acquire(), config, on_row=progress.see)
    finally:
        loop.watch = watch
    step = float(np.median(np.diff(ends)[24:-1]))
    cost = float(np.median(watched[24:-1]))
    return {
        "step_ms": 1e3 * step,
        "watch_us": 1e6 * cost,
        "share_percent": 100 * cost / step,
        "longest_watch_us": 1e6 * max(watched[24:]),
    }


if __name__ == "__main__":
    main()
