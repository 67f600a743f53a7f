"""A worker that was forked for its trial computes what a fresh process computes, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet

from ablate.launch.local import run_missing
from ablate.launch.pool import Pool
from ablate.plan import single_trial
from ablate.rundir import StudyDir, TrialDir

ROOT = Path(__file__).parents[2]
WORDS = [
    "size=tiny", "data=kjv", "train.steps=5", "train.batch_size=4", "train.validation_tokens=512",
    "train.checkpoint_every=0",
]  # fmt: skip


def curve(trial: TrialDir) -> dict[str, list[float]]:
    """All that was recorded, but times."""
    table = parquet.read_table(trial.metrics_path)
    timed = [n for n in table.column_names if n.startswith(("time/", "tokens_per_second"))]
    return table.drop_columns(timed).to_pydict()


def test_workers_are_forked_and_compute_the_same_bits(tmp_path: Path) -> None:
    """The second trial of the worker, after one of another shape."""
    here = []
    for number, own in enumerate((["model=olmo2"], ["model=gpt2"])):
        single = single_trial([*WORDS, *own, "study=warm", f"runs_dir={tmp_path}"])
        made = StudyDir(tmp_path / "warm").trial(f"{number}-{single.trial.id}")
        made.create(single.trial.config, 5)
        here.append(made)
    with Pool() as pool:
        assert run_missing(here, pool, workers=1) is None
    command = [*WORDS, "model=gpt2", "study=fresh", f"runs_dir={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "ablate", "train", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    (fresh,) = StudyDir(tmp_path / "fresh").trials()
    assert curve(fresh) == curve(here[1])
    assert curve(fresh)["train/loss"] != curve(here[0])["train/loss"]
