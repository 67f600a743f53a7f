"""The rules behind the responses, on plain numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ablate.spikes.references import skip_step
from ablate.spikes.responses import OutlierRule, StopRule, UpdateCap
from benchmarks.spike_curves import find_curves
from benchmarks.spike_stop import stopped


def noise(rows: int = 600, seed: int = 0) -> np.ndarray:
    return 3 + np.random.default_rng(seed).normal(0, 0.05, rows)


def test_the_outlier_rule_is_the_published_one_while_all_is_finite():
    loss = noise()
    loss[[10, 80, 300]] += 1.0
    rule = OutlierRule()
    flags = [rule.judge(x, 1.0) is not None for x in loss.tolist()]
    assert flags == skip_step(loss).tolist()
    assert sum(flags) == 2


def test_one_nan_is_one_step_and_blinds_nothing():
    loss, norm = noise().tolist(), [1.0] * 600
    loss[300], loss[320], norm[340] = float("nan"), 5.0, float("inf")
    rule = OutlierRule()
    out = {i: why for i, x in enumerate(loss) if (why := rule.judge(x, norm[i]))}
    assert out == {300: "not finite", 320: "loss", 340: "not finite"}


def test_the_gradient_norm_alone_is_reason_enough():
    rule = OutlierRule()
    for x in noise(100).tolist():
        assert rule.judge(3.0, x) is None
    assert rule.judge(3.0, 9.0) == "gradient norm"


def test_the_cap_remembers_norms_as_they_were_before_it():
    cap = UpdateCap(window=32)
    for x in noise(40).tolist():
        assert cap.factor(x) > 0.9
    assert cap.factor(30.0) == pytest.approx(0.1, rel=0.1)
    assert max(cap.norms.values) == 30.0


def test_a_run_that_is_lost_is_ended_and_one_that_comes_back_is_not():
    learning = 2 + 8 * (1 + np.arange(3000) / 20) ** -0.6 + noise(3000) - 3
    lost, back = learning.copy(), learning.copy()
    lost[1000:] = 9.0
    back[1000:] += 9 * np.exp(-np.arange(2000) / 800)
    assert StopRule().run(learning.tolist()) is None
    assert StopRule().run(back.tolist()) is None
    assert 1400 <= (StopRule().run(lost.tolist()) or 0) <= 1450


def test_a_run_that_never_learns_but_gets_no_worse_is_not_ended():
    assert StopRule().run(noise(3000).tolist()) is None


def test_planted_recoveries_are_not_ended_and_divergences_are():
    found = stopped(find_curves(), 24)
    assert found["recoveries"] == (0, 24)
    assert found["divergences"][0] >= 22


@pytest.mark.parametrize("make", [StopRule, OutlierRule, UpdateCap])
def test_the_state_of_a_rule_is_whole(make):
    def step(rule, x):
        if isinstance(rule, StopRule):
            return rule.update(x)
        return rule.judge(x, x) if isinstance(rule, OutlierRule) else rule.factor(x)

    loss = noise().tolist()
    loss[400] = 9.0
    first = make()
    for x in loss[:300]:
        step(first, x)
    second = make()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert [step(first, x) for x in loss[300:]] == [step(second, x) for x in loss[300:]]
