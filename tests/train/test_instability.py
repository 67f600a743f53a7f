"""How much of a trial was worse than the untrained model."""

from __future__ import annotations

import math

import pytest

from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.trial import instability


@pytest.mark.parametrize(
    ("losses", "above", "lost"),
    [
        ([5.0, 4.0, 3.0, 2.0, 1.0], 0.0, 0.0),
        ([5.0, 6.0, 9.0, 4.0, 3.0], 0.5, 0.0),
        ([5.0, 4.0, 4.0, 4.0, 80.0], 0.25, 1.0),
        ([5.0], 0.0, 0.0),
    ],
)
def test_it_is_measured_against_the_first_row(losses, above, lost) -> None:
    assert instability(losses) == {"above_start": above, "lost": lost}


def test_a_rate_too_high_shows_in_the_summary_and_a_usual_one_does_not(config, tmp_path) -> None:
    found = []
    for lr in (1e-2, 30.0):
        trial, settings = TrialDir(tmp_path / str(lr)), config(optim={"lr": lr})
        trial.create(settings, settings["train"]["steps"])
        summary = run_trial(trial.acquire(), settings).summary
        assert math.isfinite(summary["train/loss"])
        found.append((summary["spikes/above_start"], summary["spikes/lost"]))
    assert found[0] == (0.0, 0.0)
    assert found[1][0] > 0.5
    assert found[1][1] == 1.0
