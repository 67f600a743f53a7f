"""Laws of the detector on small synthetic curves."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ablate.spikes import Detector, detect, latest, score


def curve(rows: int = 800, seed: int = 0, sigma: float = 2**-5) -> np.ndarray:
    """A learning curve with normal noise, on a grid that shifts and halvings keep exact."""
    t = np.arange(rows)
    loss = 2.5 + 6 * np.exp(-t / 60) + np.random.default_rng(seed).normal(0, sigma, rows)
    return np.round(loss * 2**20) / 2**20


def alerts(events):
    return [e for e in events if e.is_alert]


def places(events):
    return [(e.kind, e.start, e.detect, e.peak, e.end, e.recovery) for e in events]


def test_a_calm_curve_raises_no_alarm():
    for seed in range(4):
        assert alerts(detect(np.arange(3000), curve(3000, seed))) == []


def test_a_spike_is_found_at_once_and_measured():
    loss = curve()
    loss[500:503] += [1.0, 2.0, 0.5]
    (event,) = alerts(detect(np.arange(800), loss))
    assert (event.kind, event.start, event.detect, event.peak, event.end) == (
        "spike", 500, 500, 501, 502,
    )  # fmt: skip
    assert (event.recovery, event.recovery_steps) == ("recovered", 1)
    assert event.height == pytest.approx(2.0, abs=0.1)
    assert event.area == pytest.approx(3.5, abs=0.4)
    assert event.residual == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("huge", [1.7e308, -1e308, 2.0**500])
def test_values_whose_differences_overflow_are_not_finite(huge):
    loss = curve(1600)
    loss[700:740] = huge
    loss[1200:1203] += 2
    infinite = np.where(np.abs(loss) > 1e100, np.inf, loss)
    events = detect(np.arange(1600), loss)
    assert [(e.kind, e.start, e.end) for e in events if not e.is_alert] == [("nonfinite", 700, 739)]
    assert repr(events) == repr(detect(np.arange(1600), infinite))
    assert score(np.arange(1600), loss, events)["nonfinite_rows"] == 40


def test_one_row_is_a_blip_and_no_alarm():
    loss = curve()
    loss[500] += 12 * 2**-5
    (event,) = detect(np.arange(800), loss)
    assert (event.kind, event.detect, event.start) == ("blip", None, 500)


def test_pain_37_a_spike_does_not_hide_the_next():
    loss = curve()
    loss[400:402] += 60 * 2**-5
    loss[450:452] += 10 * 2**-5
    assert [e.start for e in alerts(detect(np.arange(800), loss))] == [400, 450]


def test_a_level_that_stays_is_a_shift_from_400_rows_on():
    loss = curve(1600)
    loss[600:] += 0.5
    first = alerts(detect(np.arange(1600), loss))[0]
    assert (first.kind, first.start, first.recovery) == ("level_shift", 600, "unrecovered")
    (short,) = alerts(detect(np.arange(800), loss[:800]))
    assert (short.kind, short.recovery, short.end) == ("spike", "unrecovered", 799)


def test_a_rise_that_goes_on_is_a_divergence():
    loss = curve(1600)
    loss[600:] += np.arange(1000) * 0.05
    assert alerts(detect(np.arange(1600), loss))[0].kind == "divergence"


def test_a_small_shift_is_found_by_the_slow_arm():
    loss = curve(1600)
    loss[900:] += 3 * 2**-5
    found = alerts(detect(np.arange(1600), loss))
    assert found
    assert 0 <= (found[0].detect or 0) - 900 <= 40


def test_a_rise_of_the_size_of_the_noise_is_found_by_averaging():
    for seed in range(4):
        loss = curve(1600, seed)
        loss[1000:1150] += 2**-5
        (found,) = alerts(detect(np.arange(1600), loss))
        assert found.recovery in ("recovered", "slow")
        assert abs(found.start - 1000) <= 20
        assert 0 <= (found.detect or 0) - 1000 <= 80


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_is_one_event_and_changes_nothing_else(value):
    loss = curve()
    loss[520:522] += 1.0
    with_hole = loss.copy()
    with_hole[500] = value
    (hole, spike) = detect(np.arange(800), with_hole)
    assert (hole.kind, hole.start, hole.end) == ("nonfinite", 500, 500)
    without = np.delete(loss, 500)
    (same,) = detect(np.delete(np.arange(800), 500), without)
    assert places([same]) == places([spike])


def test_a_huge_value_blinds_nothing():
    loss = curve()
    loss[500] = 1e9
    loss[520:522] += 1.0
    assert [e.start for e in alerts(detect(np.arange(800), loss))] == [500, 520]


def test_shifts_and_scalings_by_powers_of_two_change_no_event():
    loss = curve(1600)
    loss[500:502] += 0.5
    loss[900:] += 0.25
    plain = places(detect(np.arange(1600), loss))
    assert plain
    for shift in (-2.0, 1.0, 64.0):
        assert places(detect(np.arange(1600), loss + shift)) == plain
    for scale in (0.25, 8.0):
        assert places(detect(np.arange(1600), loss * scale)) == plain


def test_a_resume_anywhere_changes_no_event():
    loss = curve(1400)
    loss[300:303] += 1.0
    loss[600:] += 0.2
    loss[1000] = math.nan
    grad = np.exp(np.random.default_rng(1).normal(0, 0.1, 1400))
    grad[298:302] = 9.0
    whole = detect(np.arange(1400), loss, grad_norm=grad)
    for stop in (5, 200, 301, 310, 640, 1000, 1001):
        first, events = Detector(), []
        for i in range(stop):
            events += first.update(i, loss[i], grad_norm=grad[i])
        second = Detector()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for i in range(stop, 1400):
            events += second.update(i, loss[i], grad_norm=grad[i])
        events += second.finish()
        assert latest(events) == whole, stop


def test_a_rewind_is_an_event_and_what_was_overwritten_is_marked():
    loss = curve(1000)
    loss[700:702] += 1.0
    steps = np.concatenate([np.arange(750), np.arange(650, 1000)])
    again = np.concatenate([loss[:750], curve(1000, seed=1)[650:]])
    events = detect(steps, again)
    assert [(e.kind, e.start, e.start_row, e.overwritten) for e in events] == [
        ("spike", 700, 700, True), ("rewind", 650, 750, False),
    ]  # fmt: skip


def test_a_gap_is_an_event_and_no_alarm():
    keep = np.r_[0:500, 530:1000]
    events = detect(keep, curve(1000)[keep])
    assert [(e.kind, e.start, e.start_row) for e in events] == [("gap", 530, 500)]


def test_rows_that_are_many_steps_apart_need_no_confirmation():
    loss = curve()
    loss[500] += 12 * 2**-5
    (event,) = detect(np.arange(800) * 5, loss)
    assert (event.kind, event.start, event.detect) == ("spike", 2500, 2500)


def test_quantised_losses_have_a_noise_floor():
    loss = np.round(curve(1500, sigma=2**-8) * 64) / 64
    assert alerts(detect(np.arange(1500), loss)) == []
    loss[900:902] += 1.0
    assert [e.start for e in alerts(detect(np.arange(1500), loss))] == [900]


def test_the_gradient_norm_corroborates_with_its_lead():
    loss = curve()
    loss[500:503] += 1.0
    grad = np.exp(np.random.default_rng(1).normal(0, 0.1, 800))
    grad[496:500] = 20.0
    (event,) = alerts(detect(np.arange(800), loss, grad_norm=grad))
    assert event.corroboration["grad_norm"]["lead"] == 4
    assert event.corroboration["grad_norm"]["ratio"] > 10
    grad[300:302] = 20.0
    assert len(alerts(detect(np.arange(800), loss, grad_norm=grad))) == 1


@pytest.mark.parametrize("every", [1, 2])
def test_a_single_firing_well_before_the_event_is_no_lead_of_it(every):
    loss, rms = curve(), np.full(800, np.nan)
    rms[::every] = 1 + 0.01 * np.random.default_rng(2).normal(0, 1, 800 // every)
    loss[500:510] += 1
    rms[496:512:every] *= 20
    rms[484] *= 1.2
    (event,) = alerts(detect(np.arange(800), loss, activation_rms=rms))
    assert event.corroboration["activation_rms"]["lead"] == 4


def test_a_state_without_the_measurements_of_its_signals_is_still_read():
    loss = curve()
    loss[500:510] += 1
    norms = np.ones(800)
    norms[496:512] *= 20
    detector = Detector()
    for i in range(499):
        detector.update(i, loss[i], grad_norm=norms[i])
    state = json.loads(json.dumps(detector.state_dict()))
    signal = state["signals"]["grad_norm"]
    del signal["measured"]
    signal["fired"] = [f[:3] for f in signal["fired"]]
    detector.load_state_dict(state)
    told = [e for i in range(499, 560) for e in detector.update(i, loss[i], grad_norm=norms[i])]
    assert told[-1].corroboration["grad_norm"]["lead"] == 4


def test_a_signal_that_settled_on_another_level_long_ago_is_no_witness():
    loss, draw = curve(), np.random.default_rng(3)
    norms = np.exp(draw.normal(0, 0.05, 800))
    norms[300:] *= 2
    loss[650:653] += 1
    (event,) = alerts(detect(np.arange(800), loss, grad_norm=norms))
    assert event.corroboration == {}
    norms[648:653] *= 5
    (event,) = alerts(detect(np.arange(800), loss, grad_norm=norms))
    witness = event.corroboration["grad_norm"]
    assert witness["lead"] == 2
    assert witness["ratio"] == pytest.approx(5, rel=0.2)
