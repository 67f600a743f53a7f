"""What differencing runs with the same data order shows."""

from __future__ import annotations

from itertools import product

import numpy as np

from ablate.spikes import compare, detect

STEPS = np.arange(900)


def arms(count: int = 3, seed: int = 0, own: float = 0.003) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shared = 2.5 + 5 * (1 + STEPS / 20) ** -0.6 + rng.normal(0, 0.05, 900)
    return [shared + 0.02 * i + rng.normal(0, own, 900) for i in range(count)]


def found(losses):
    return compare({f"arm{i}": (STEPS, x) for i, x in enumerate(losses)})


def test_an_excursion_of_every_arm_is_the_data():
    losses = arms()
    for x in losses:
        x[500:503] += 1.0
    comparison = found(losses)
    assert comparison.paired
    for events in comparison.events.values():
        assert [(e.start, e.cause) for e in events if e.is_alert] == [(500, "data")]


def test_an_excursion_of_one_arm_is_that_arms():
    for count in (2, 3):
        losses = arms(count)
        losses[1][500:503] += 1.0
        events = found(losses).events
        assert [(e.start, e.cause) for e in events["arm1"] if e.is_alert] == [(500, "arm")]
        assert not [e for e in events["arm0"] if e.is_alert]


def test_pairing_shows_what_no_single_run_shows():
    losses = arms(2)
    losses[0][500:503] += 0.05
    events = found(losses).events["arm0"]
    assert [(e.start, e.cause) for e in events if e.is_alert] == [(500, "arm")]
    losses = arms(2)
    losses[1][600:] += 0.02
    (shift,) = [e for e in found(losses).events["arm1"] if e.is_alert]
    assert shift.cause == "arm"
    assert 0 <= (shift.detect or 0) - 600 <= 12


def test_runs_with_other_batches_are_not_paired():
    losses = [arms(1, seed=i)[0] for i in range(3)]
    losses[1][500:503] += 1.0
    comparison = found(losses)
    assert not comparison.paired
    assert {e.cause for events in comparison.events.values() for e in events} == {None}


def test_a_run_that_does_not_learn_while_the_others_do_is_on_a_plateau():
    losses = arms(3)
    losses[2][:] = losses[2][60] + (losses[2] - losses[2].mean()) * 0.01
    kinds = {e.kind for e in found(losses).events["arm2"]}
    assert "plateau" in kinds
    assert all(e.kind != "plateau" for e in found(arms(3)).events["arm2"])


def test_most_of_the_arms_make_it_the_data_and_not_one_of_them():
    losses = arms(4)
    for x in losses[:3]:
        x[500:503] += 1.0
    losses[1][700:703] += 1.0
    events = found(losses).events
    for name in ("arm0", "arm1", "arm2"):
        assert (500, "data") in [(e.start, e.cause) for e in events[name] if e.is_alert], name
    assert (700, "arm") in [(e.start, e.cause) for e in events["arm1"]]


def test_arms_that_were_equal_so_far_and_part_by_next_to_nothing_raise_no_alarm():
    losses = arms(3, own=0.0)
    losses = [x - 0.02 * i for i, x in enumerate(losses)]
    for x in losses[1:]:
        x[400:] += np.random.default_rng(5).normal(0, 1e-5, 500)
    losses[0][600:640] += 1e-3
    assert not [e for events in found(losses).events.values() for e in events if e.is_alert]


def test_a_run_that_broke_off_early_does_not_keep_the_others_from_being_compared():
    losses = arms(4)
    for x in losses:
        x[500:503] += 1.0
    runs = {f"arm{i}": (STEPS, x) for i, x in enumerate(losses)}
    runs["arm3"] = (STEPS[:60], losses[3][:60])
    events = compare(runs).events
    assert [(e.start, e.cause) for e in events["arm0"] if e.is_alert] == [(500, "data")]
    assert events["arm3"] == []


def test_arms_that_learn_at_different_rates_have_no_event_where_they_part():
    """In the demo all arms without RoPE fell behind from one row on, which was called a spike."""
    parted = alarms = 0
    for seed, slope in product(range(6), (0.0005, 0.001, 0.002)):
        losses = arms(5, seed=seed, own=0.005)
        for x in losses[2:]:
            x[100:] -= slope * np.minimum(STEPS[100:] - 100, 200)
        difference = losses[0] - np.median(losses[1:], axis=0)
        parted += any(e.is_alert for e in detect(STEPS, difference))
        events = found(losses).events["arm0"]
        alarms += any(e.is_alert and e.cause == "arm" for e in events)
    assert parted >= 15
    assert 4 * alarms <= parted


def test_sigmas_of_arms_that_were_equal_so_far_are_not_of_their_rounding():
    losses = arms(3, own=0.0)
    losses[0][600:620] += 0.2
    (own,) = [e for e in found(losses).events["arm0"] if e.is_alert]
    assert own.cause == "arm"
    assert own.sigma is not None
    assert own.sigma <= 0.2 / (0.05 / 30) * 1.3


def test_what_runs_that_are_one_share_is_nothing_that_one_of_them_did_alone():
    """In sweep=stability/planted a response that was never asked for is the baseline."""
    told = 0
    for seed in range(6):
        same, *moved = arms(4, seed=seed)
        for x in (same, *moved):
            x[500:503] += 1.0
        moved[0][500:503] -= 1.0  # the batch was skipped
        for x in moved:
            x[503:] -= 0.02 * (1 - np.exp(-(STEPS[503:] - 503) / 8))
        events = found([same, *moved]).events["arm0"]
        told += any(e.cause == "arm" for e in events if e.is_alert)
        events = found([same, *moved, same.copy()]).events
        assert events["arm0"] == events["arm4"]
        assert [e.cause for e in events["arm0"] if e.is_alert] == ["data"]
    assert told == 6, "a run that nobody else is has it"
    same[600:620] += 1.0
    for name in ("arm0", "arm4"):
        events = found([same, *moved, same.copy()]).events[name]
        assert (600, "arm") in [(e.start, e.cause) for e in events if e.is_alert]
