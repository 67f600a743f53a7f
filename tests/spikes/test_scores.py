"""The published rules as published, and a score that ranks damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ablate.spikes import RULES, Event, detect, score
from ablate.spikes.references import olmo2_score, skip_step, stability_monitor


def noise(rows: int = 3000, seed: int = 0) -> np.ndarray:
    return 3 + np.random.default_rng(seed).normal(0, 0.05, rows)


def test_the_rules_flag_a_plain_spike_and_nothing_of_calm_noise():
    loss = noise()
    loss[2000] += 2
    for name, rule in RULES.items():
        if name != "kill_loss_spike":  # it needs five rows of twice the mean
            assert np.flatnonzero(rule(loss)).tolist() == [2000], name
    loss[2000:2006] += 6
    assert RULES["kill_loss_spike"](loss)[2004:2006].all()


def test_one_nan_makes_the_published_skip_rule_skip_a_whole_window():
    loss = noise(800)
    loss[400] = np.nan
    assert np.flatnonzero(skip_step(loss)).tolist() == list(range(400, 529))
    loss[420] += 5
    assert not stability_monitor(loss).any()


def test_the_window_rules_equal_their_definition_row_by_row():
    loss = noise(400)
    loss[200:204] += [1, 0.5, 0.3, 0.32]
    for i, flag in enumerate(skip_step(loss)):
        held = loss[max(0, i - 128) : i]
        far = len(held) >= 64 and loss[i] - held.mean() > 6 * held.std(ddof=1)
        assert flag == far


def test_a_ruined_run_has_the_greater_damage_and_may_have_the_lower_published_score():
    steps = np.arange(3000)
    noisy, ruined = noise(), noise(seed=1)
    noisy[1500::200] += 0.8
    ruined[1500:] += np.minimum(np.arange(1500) * 0.01, 2.0)
    scores = [score(steps, x, detect(steps, x)) for x in (noisy, ruined)]
    assert (scores[0]["olmo2_score"] or 0) > (scores[1]["olmo2_score"] or 0)
    assert (scores[0]["damage"] or 0) < (scores[1]["damage"] or 0)


def test_a_level_that_stays_is_damage_until_the_end():
    steps, loss = np.arange(3000), noise()
    loss[1000:] += 0.5
    damage = score(steps, loss, detect(steps, loss))["damage"]
    assert damage == pytest.approx(1000 * 0.5 * 2000 / 3000, rel=0.1)


def event(start: int, end: int, nats: float, detector: str = "fast", **more: Any) -> Event:
    """So many nats above the baseline from `start` to `end`, both included."""
    places = {"start": start, "start_row": start, "end": end, "end_row": end}
    area = nats * (end - start + 1)
    return Event(kind="spike", **places, area=area, detector=detector, closed=True, **more)


@pytest.mark.parametrize(
    ("spans", "steps"),
    [
        ([(100, 199), (100, 199)], 100),
        ([(100, 199), (150, 249)], 150),
        ([(100, 399), (200, 209), (300, 309)], 300),
        ([(100, 199), (200, 299)], 200),
        ([(100, 199), (190, 259), (250, 299), (500, 549)], 250),
    ],
)
def test_where_events_overlap_a_step_is_damaged_once(spans, steps):
    events = [event(*span, 0.5, ("fast", "drift")[i % 2]) for i, span in enumerate(spans)]
    scores = score(np.arange(1001), noise(1001), events)
    assert scores["damage"] == scores["damage_area"] == pytest.approx(0.5 * steps)


def test_of_events_that_overlap_the_higher_counts():
    events = [event(100, 199, 0.5, "drift"), event(150, 169, 2.0)]
    scores = score(np.arange(1001), noise(1001), events)
    assert scores["damage_area"] == pytest.approx(0.5 * 80 + 2.0 * 20)


def test_a_level_that_two_events_saw_is_damage_once_until_the_end():
    lost = {"residual": 0.5, "recovery": "unrecovered"}
    one, two = event(100, 299, 0.5, "drift", **lost), event(250, 399, 0.5, **lost)
    for events in ([one], [one, two]):
        scores = score(np.arange(1001), noise(1001), events)
        assert scores["damage"] == pytest.approx(0.5 * 900, rel=0.01)


def test_a_record_shorter_than_the_window_has_no_published_score():
    loss = noise(500)
    assert score(np.arange(500), loss, [])["olmo2_score"] is None
    assert olmo2_score(loss) == 0
