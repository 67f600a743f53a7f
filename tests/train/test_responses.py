"""What a trial does about its spikes: written down, exact after kills, nothing by default."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ablate.errors import DivergedError
from ablate.rundir import TrialDir
from ablate.spikes import Detector, recorded
from ablate.train import loop, run_trial
from ablate.train.respond import RESPONSES
from ablate.train.watch import Watch
from tests.train.test_resume import assert_same, final, rows
from tests.train.tiny import without_clock

STEPS = 90
SMALL = {"window": 24, "rewind_steps": 8, "patience": 32, "lr_steps": 20}


def planted(config, name: str, **spikes: Any) -> dict[str, Any]:
    """A trial whose learning rate goes off a cliff at step 60, for three steps."""
    return config(
        spikes={"name": name, **SMALL, **spikes},
        train={"steps": STEPS, "checkpoint_every": 7},
        schedule={"name": "tests.train.test_responses:cliff"},
        clip={"name": "none"},
    )


def cliff(config: Any, horizon: Any) -> Any:
    return lambda t: 1e-3 * (800 if 60 <= t < 63 else 1)


def responses(folder) -> list[dict[str, Any]]:
    return [e for e in TrialDir(folder).stitched("events.jsonl") if e["kind"] == "response"]


def train(folder, settings) -> dict[str, Any]:
    trial = TrialDir(folder)
    trial.create(settings, settings["train"]["steps"])
    return run_trial(trial.acquire(), settings).summary


def test_the_detector_sees_the_spike_in_the_loop_and_writes_it_down(config, tmp_path):
    summary = train(tmp_path / "t", planted(config, "observe"))
    record = rows(tmp_path / "t")
    (event,) = [e for e in recorded(rows(tmp_path / "t", "events.jsonl")) if e.is_alert]
    assert 60 <= event.start <= (event.detect or 0) <= 64
    assert "update_norm" in event.corroboration
    assert summary["spikes/alerts"] == 1
    assert summary["spikes/damage"] > 0
    assert not responses(tmp_path / "t")
    assert not [k for k in record[0] if k.startswith("spikes/")]


def test_observing_changes_no_bit(config, tmp_path, monkeypatch):
    settings = planted(config, "observe")
    train(tmp_path / "with", settings)
    monkeypatch.setattr(Detector, "update", lambda *a, **k: [])
    train(tmp_path / "without", settings)
    assert rows(tmp_path / "with") == rows(tmp_path / "without")
    assert_same(final(tmp_path / "with")[0], final(tmp_path / "without")[0])


@pytest.mark.parametrize("name", RESPONSES)
def test_killed_anywhere_the_events_and_the_weights_are_those_of_the_undisturbed_trial(
    name, config, trials, tmp_path
):
    settings = planted(config, name)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = trials.finish(whole, settings)
    for step in (5, 40, 61, 62, 66, 80):
        assert trials.attempt(killed, settings, f"after_row:{step}") == -9, step
    summary = trials.finish(killed, settings)
    assert rows(killed) == rows(whole)
    assert [r["step"] for r in rows(whole)] == list(range(1, STEPS + 1))
    assert rows(killed, "events.jsonl") == rows(whole, "events.jsonl")
    assert_same(final(killed), final(whole))
    assert without_clock(summary) == without_clock(expected)


@pytest.mark.parametrize("name", ["skip_step", "skip_batch", "rewind", "lower_lr", "clip_update"])
def test_pain_37_what_was_done_is_an_event_a_column_and_a_line_of_the_summary(
    name, config, tmp_path
):
    summary = train(tmp_path / "t", planted(config, name))
    done = responses(tmp_path / "t")
    assert {e["what"] for e in done} >= {name}
    assert all(e["step"] >= 24 for e in done)
    assert rows(tmp_path / "t")[-1]["spikes/responses"] == len(done)
    assert summary[f"spikes/{name}"] == sum(e["what"] == name for e in done)


def test_a_skipped_step_leaves_weights_and_moments_alone(config, tmp_path, monkeypatch):
    poison(monkeypatch, {30})
    seen: list[Any] = []
    see = Watch.see

    def look(self, row):
        if row["step"] in (29, 30):
            state = self._run.capture()
            seen.append((state["model"], state["optimiser"]["state"]))
        return see(self, row)

    monkeypatch.setattr(Watch, "see", look)
    train(tmp_path / "t", planted(config, "skip_step"))
    assert_same(*seen)
    (event,) = [e for e in responses(tmp_path / "t") if e["step"] == 30]
    assert event["why"] == "not finite"
    record = rows(tmp_path / "t")
    assert record[29]["train/update_norm"] == 0
    assert math.isfinite(record[30]["train/loss"])


def test_one_nan_skips_one_step(config, tmp_path, monkeypatch):
    poison(monkeypatch, {30})
    train(tmp_path / "t", planted(config, "skip_step", sigmas=50.0))
    assert [e["step"] for e in responses(tmp_path / "t")] == [30]


def test_a_replaced_batch_comes_from_behind_the_trials_last(config, tmp_path, monkeypatch):
    poison(monkeypatch, {30})
    train(tmp_path / "t", planted(config, "skip_batch", sigmas=50.0))
    (event,) = responses(tmp_path / "t")
    assert (event["batch"], event["instead"]) == (30, STEPS + 1)
    assert rows(tmp_path / "t")[29]["train/update_norm"] > 0


def test_a_rewind_puts_the_snapshot_back_and_keeps_the_data_order(config, tmp_path):
    train(tmp_path / "t", planted(config, "rewind"))
    first = responses(tmp_path / "t")[0]
    assert first["step"] - 16 <= first["to"] <= first["step"] - 8
    assert first["next_batch"] == first["step"] + 1
    record = rows(tmp_path / "t")
    before = np.mean([r["train/loss"] for r in record[50:58]])
    assert record[first["step"]]["train/loss"] < before + 0.5
    observed = train(tmp_path / "o", planted(config, "observe"))
    rewound = train(tmp_path / "r", planted(config, "rewind"))
    assert rewound["train/loss"] < observed["train/loss"]


def test_a_rewind_may_leave_out_more_batches(config, tmp_path):
    train(tmp_path / "t", planted(config, "rewind", skip_batches=40))
    first = responses(tmp_path / "t")[0]
    assert first["next_batch"] == first["to"] + 41


def test_a_rewind_survives_a_loss_that_is_not_finite_so_often_and_no_more(
    config, tmp_path, monkeypatch
):
    poison(monkeypatch, {30})
    train(tmp_path / "t", planted(config, "rewind"))
    assert responses(tmp_path / "t")[0]["step"] == 30
    poison(monkeypatch, set(range(20, 80)))
    with pytest.raises(DivergedError):
        train(tmp_path / "u", planted(config, "rewind", limit=3))
    assert len(responses(tmp_path / "u")) == 3


def test_a_lowered_rate_comes_back(config, tmp_path):
    train(tmp_path / "t", planted(config, "lower_lr"))
    last = responses(tmp_path / "t")[-1]
    record, rate = rows(tmp_path / "t"), cliff(None, None)
    assert record[last["step"]]["lr"] == last["factor"] * rate(last["step"] + 1)
    assert last["factor"] <= 0.5
    assert record[last["step"] + 20]["lr"] == record[-1]["lr"] == 1e-3


def test_a_clipped_update_has_the_size_that_is_written_down(config, tmp_path):
    train(tmp_path / "t", planted(config, "clip_update", sigmas=3.0))
    record = rows(tmp_path / "t")
    event = next(e for e in responses(tmp_path / "t") if e["step"] == 60)
    assert record[59]["train/update_norm"] == pytest.approx(event["norm"] * event["factor"])
    assert event["factor"] < 0.1


def test_a_lost_trial_is_stopped_as_diverged(config, tmp_path, monkeypatch):
    trained = loop.accumulate_gradients

    def lost(run, batch):
        return trained(run, batch) + torch.tensor([9.0 * (run.lost > 40), 0.0])

    def count(run, step):
        run.lost = step
        return batch_of(run, step)

    from ablate.train.run import Run

    batch_of = Run.next_batch
    monkeypatch.setattr(Run, "next_batch", count)
    monkeypatch.setattr(loop, "accumulate_gradients", lost)
    settings = config(
        spikes={"name": "stop", "patience": 128}, train={"steps": 400, "checkpoint_every": 0}
    )
    with pytest.raises(DivergedError, match="after"):
        train(tmp_path / "t", settings)
    assert responses(tmp_path / "t")[-1]["what"] == "stop"
    assert 160 <= rows(tmp_path / "t")[-1]["step"] <= 224


def poison(monkeypatch, steps: set[int]) -> None:
    """Makes the loss of these batches not a number."""
    from ablate.train.run import Run

    trained, batch_of = loop.accumulate_gradients, Run.next_batch
    current = [0]

    def next_batch(run, step):
        current[0] = run.response.batch(step)
        return batch_of(run, step)

    def accumulate(run, batch):
        return trained(run, batch) * (math.nan if current[0] in steps else 1.0)

    monkeypatch.setattr(Run, "next_batch", next_batch)
    monkeypatch.setattr(loop, "accumulate_gradients", accumulate)
