"""What must change no event: a shift, a scaling, the way of reading, and where a run was resumed.

On stretches of real curves with events planted into them: the runs beside this file, the labelled
public curves where they are found, and a synthetic one.
"""

from __future__ import annotations

import csv
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ablate.spikes import Detector, detect, latest
from ablate.spikes.events import Event
from benchmarks.spike_curves import curves_in, find_curves, load, synthetic

Array = NDArray[np.float64]

CURVES = Path(__file__).parent / "curves"
OWN = curves_in(CURVES)
"""Runs of `ablate train`, from which the columns step, loss, grad_norm and lr were kept."""
LABELLED = [p for part in ("interventions", "public") for p in curves_in(find_curves() / part)]
FILES = [*OWN, *LABELLED]
GRID = 2.0**20
"""Losses are put on multiples of its inverse: sums and halves of these are exact."""


@functools.cache
def curve(i: int) -> tuple[Array, dict[str, Array]]:
    if i == len(FILES):
        return synthetic("white", 3000, np.random.default_rng(0)), {}
    read = load(FILES[i])
    return np.round(read.loss * GRID) / GRID, read.signals


@st.composite
def records(draw: Any) -> tuple[Array, Array, dict[str, Array]]:
    """(steps, losses, signals) of a stretch of a curve, with up to three events in it."""
    loss, signals = curve(draw(st.integers(0, len(FILES))))
    rows = min(draw(st.integers(60, 1400)), len(loss))
    first = draw(st.integers(0, len(loss) - rows))
    part = loss[first : first + rows].copy()
    noise = float(np.nanmedian(np.abs(np.diff(part)))) or 0.01
    for _ in range(draw(st.integers(0, 3))):
        at, long = draw(st.integers(0, rows - 1)), draw(st.sampled_from([1, 3, 40, 150, 900]))
        height = noise * draw(st.sampled_from([0.7, 1.5, 4.0, 15.0, 1e3, np.nan]))
        part[at : at + long] += np.round(height * GRID) / GRID
    stride = draw(st.sampled_from([1, 1, 5]))
    return np.arange(rows) * stride, part, {k: v[first:][:rows] for k, v in signals.items()}


def places(events: list[Event]) -> list[tuple[Any, ...]]:
    """All of an event but its sizes, which a scaling changes and a shift rounds."""
    return [
        (e.kind, e.start_row, e.detect_row, e.peak_row, e.end_row, e.recovery, e.detector)
        for e in events
    ]


@settings(max_examples=25)
@given(record=records(), shift=st.integers(-64 * 1024, 64 * 1024))
def test_a_shift_of_the_loss_changes_no_event(record, shift):
    steps, loss, signals = record
    moved = detect(steps, loss + shift / 1024, **signals)
    assert places(moved) == places(detect(steps, loss, **signals))


@settings(max_examples=25)
@given(record=records(), power=st.integers(-12, 12))
def test_a_scaling_by_a_power_of_two_scales_the_heights_and_changes_nothing_else(record, power):
    steps, loss, signals = record
    scale, sizes = 2.0**power, ("height", "area", "baseline", "residual")
    scaled = detect(steps, loss * scale, **signals)
    back = [
        replace(e, **{k: v / scale for k in sizes if (v := getattr(e, k)) is not None})
        for e in scaled
    ]
    assert repr(back) == repr(detect(steps, loss, **signals))


@settings(max_examples=25)
@given(record=records())
def test_row_by_row_is_the_whole_array(record):
    steps, loss, signals = record
    detector, events = Detector(), []
    for i, step in enumerate(steps.tolist()):
        events += detector.update(step, loss[i], **{k: v[i] for k, v in signals.items()})
    events = latest(events + detector.finish())
    assert repr(events) == repr(detect(steps, loss, **signals))


@settings(max_examples=25)
@given(record=records(), share=st.floats(0, 1))
def test_a_resume_anywhere_is_no_resume(record, share):
    steps, loss, signals = record
    first, stop, events = Detector(), round(share * len(loss)), []
    for i in range(stop):
        events += first.update(int(steps[i]), loss[i], **{k: v[i] for k, v in signals.items()})
    second = Detector()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for i in range(stop, len(loss)):
        row = int(steps[i]), loss[i], {k: v[i] for k, v in signals.items()}
        told = second.update(row[0], row[1], **row[2])
        assert repr(told) == repr(first.update(row[0], row[1], **row[2]))
        events += told
    assert json.dumps(second.state_dict()) == json.dumps(first.state_dict())
    assert repr(latest(events + second.finish())) == repr(detect(steps, loss, **signals))


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_a_learning_rate_that_was_raised_for_some_steps_is_found_and_a_calm_run_is_calm(path):
    with open(path.with_name("labels.csv"), newline="") as file:
        marks = [int(r["step"]) for r in csv.DictReader(file) if r["run"] == path.stem]
    read = load(path)
    alerts = [e for e in detect(read.steps, read.loss, **read.signals) if e.is_alert]
    ends = [m + 150 for m in marks]
    for at, end in zip(marks, ends, strict=True):
        assert any(e.start <= end and (e.end or end) >= at for e in alerts), at
    for e in alerts:
        assert any(at - 3 <= e.start <= end for at, end in zip(marks, ends, strict=True)), e
