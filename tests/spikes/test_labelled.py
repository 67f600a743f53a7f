"""The labelled curves of benchmarks/curves, and their bars."""

from __future__ import annotations

from benchmarks.spike_curves import find_curves
from benchmarks.spike_labelled import interventions, mixtral

FOLDER = find_curves()


def test_the_mixtral_spikes_are_found_without_a_false_alarm():
    found, of, false = mixtral(FOLDER)["ours"]
    assert (of, false) == (10, 0)
    assert found >= 9


def test_every_labelled_intervention_is_found_without_a_false_alarm():
    runs = interventions(FOLDER)
    for columns in ("ours", "ours + lr"):
        total = runs[columns]
        assert (total["found"], total["of"], total["false"]) == (13, 13, 0), columns
        assert sorted(total["delays"])[6] == 0, columns
    # With the rate recorded. On the loss alone one is found later: docs/spikes.md.
    assert max(runs["ours + lr"]["delays"]) <= 15
    assert sorted(runs["ours"]["delays"])[-2] <= 15
