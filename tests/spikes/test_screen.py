"""Stretches of calm rows judged at once give the state and the events of row by row."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ablate.spikes import Detector, detect
from ablate.spikes.detector import sweep


def eventful(seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """A record with about everything in it: steps, losses, signals."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1500, 4000))
    noise = rng.standard_t(3, n) if seed % 3 == 0 else rng.normal(0, 1, n)
    loss = 2 + 6 * (1 + np.arange(n) / 30) ** -0.5 + 0.03 * noise
    if seed % 4 == 1:
        loss = np.round(loss * 128) / 128
    if seed % 5 == 2:
        loss[900:1300] = loss[900]
    for _ in range(int(rng.integers(0, 8))):
        at, long = int(rng.integers(50, n)), int(rng.integers(1, 600))
        loss[at : at + long] += rng.choice([0.1, 0.3, 2.0, 1e9])
    loss[rng.integers(0, n, int(rng.integers(0, 4)))] = np.nan
    stride = int(rng.choice([1, 1, 5]))
    steps = np.arange(n) * stride
    if seed % 2:
        at, back = int(rng.integers(600, n)), int(rng.integers(-40, 500))
        steps[at:] -= back * stride
    rate = np.full(n, 1e-3)
    rate[int(rng.integers(300, n)) :] *= 4
    norm = np.exp(rng.normal(0, 0.2, n))
    norm[rng.integers(0, n, 3)] = [50, np.nan, np.inf]
    return steps, loss, {"grad_norm": norm, "lr": rate} if seed % 3 else {}


@pytest.mark.parametrize("seed", range(24))
def test_a_whole_array_leaves_the_state_and_the_events_of_row_by_row(seed):
    steps, loss, signals = eventful(seed)
    columns = {k: v.tolist() for k, v in signals.items()}
    one, events = Detector(), []
    for i, (step, value) in enumerate(zip(steps.tolist(), loss.tolist(), strict=True)):
        events += one.update(step, value, **{k: v[i] for k, v in columns.items()})
    whole = Detector()
    swept = list(sweep(whole, steps, loss, **columns))
    assert repr(swept) == repr(events)
    assert json.dumps(whole.state_dict()) == json.dumps(one.state_dict())


def test_a_calm_array_is_hardly_ever_judged_row_by_row(monkeypatch):
    rng = np.random.default_rng(0)
    loss = 2 + 6 * (1 + np.arange(20_000) / 30) ** -0.5 + 0.03 * rng.normal(0, 1, 20_000)
    rows, update = [], Detector.update
    monkeypatch.setattr(Detector, "update", lambda *a, **k: rows.append(a) or update(*a, **k))
    detect(np.arange(20_000), loss)
    assert len(rows) < 1000
