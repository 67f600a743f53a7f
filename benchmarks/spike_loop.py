"""What watching costs the training loop a step: detector, events, the row, and the progress shown.

python -m benchmarks.spike_loop            # d = 128, four layers, 256 tokens a step, one thread
"""

from __future__ import annotations

import argparse
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
from ablate.train import run_trial
from ablate.train.watch import Watch

STEPS, FIRST = 300, 24
"""The detector judges from the second on."""


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder)), indent=2))


def measure(folder: Path) -> dict[str, Any]:
    """Means of CPU time a step: several rows are watched at once, and the others cost little."""
    words = ["size=1m", "model=olmo2", "data=kjv", f"train.steps={STEPS}"]
    words += ["train.validation_tokens=1000", "train.checkpoint_every=0", "train.device=cpu"]
    words += ["train.batch_size=4", "train.sequence_length=64"]  # short steps: the worst case
    config = resolve(Composer().compose(words))
    trial = TrialDir(folder / "trial")
    trial.create(config, STEPS)
    watched, ends = [], []
    see = Watch.see

    def timed(watch: Watch, row: dict[str, Any]) -> str | None:
        began = time.thread_time()
        why = see(watch, row)
        ends.append(time.thread_time())
        watched.append(ends[-1] - began)
        return why

    Watch.see = timed  # type: ignore[method-assign]
    try:
        with progress_of_trial("trial", STEPS) as progress:
            run_trial(trial.acquire(), config, on_row=progress.see)
    finally:
        Watch.see = see  # type: ignore[method-assign]
    step = float(np.mean(np.diff(ends)[FIRST:-1]))
    cost = float(np.mean(watched[FIRST:-1]))
    return {
        "step_ms": 1e3 * step,
        "watch_us": 1e6 * cost,
        "share_percent": 100 * cost / step,
        "longest_watch_us": 1e6 * max(watched[FIRST:]),
    }


if __name__ == "__main__":
    main()
