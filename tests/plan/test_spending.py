"""Alpha spending: published boundaries, nothing overspent, and a familywise rate that holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ablate.errors import ConfigError
from ablate.plan.spending import RULES, alphas_at_looks, nominal_levels, spent
from ablate.plan.sweep import DecideConfig, SweepConfig

looks = st.lists(st.integers(2, 40), min_size=1, max_size=5, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("rule", "at", "published"),
    [
        ("obrien_fleming", (2, 4), (2.963, 1.969)),
        ("obrien_fleming", (2, 4, 6, 8, 10), (4.877, 3.357, 2.680, 2.290, 2.031)),
        ("pocock", (2, 4, 6, 8, 10), (2.438, 2.427, 2.410, 2.397, 2.386)),
    ],
)
def test_the_boundaries_are_those_of_lan_and_demets(rule, at, published) -> None:
    levels = nominal_levels(0.05, at, rule)
    assert [stats.norm.isf(x / 2) for x in levels] == pytest.approx(published, abs=2e-3)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=20)
@given(at=looks, alpha=st.sampled_from([0.01, 0.05, 0.2]), m=st.integers(1, 30))
def test_no_look_has_more_than_was_declared(rule, at, alpha, m) -> None:
    levels = alphas_at_looks(alpha, at, comparisons=m, rule=rule)
    assert len(levels) == len(at)
    assert all(0 <= level <= alpha * (1 + 1e-9) for level in levels)
    assert sum(nominal_levels(alpha, tuple(at), rule)) >= alpha * (1 - 1e-6)
    assert levels == alphas_at_looks(alpha, at, comparisons=m, rule=rule), "deterministic"
    if len(at) == 1:
        assert levels == pytest.approx([alpha], rel=1e-6), "one look has all of it"
    assert spent(alpha, 1.0, rule) == pytest.approx(alpha)


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 4])
def test_a_study_looked_at_three_times_errs_at_the_stated_rate(m) -> None:
    at, alpha, studies = (3, 6, 9), 0.05, 20_000
    levels = alphas_at_looks(alpha, at, comparisons=m)
    rng = np.random.default_rng(7)
    y = rng.normal(size=(studies, m + 1, at[-1]))
    wrong = np.zeros(studies, dtype=bool)
    for n, level in zip(at, levels, strict=True):
        part = y[:, :, :n]
        rest = part - part.mean(2, keepdims=True) - part.mean(1, keepdims=True)
        rest += part.mean((1, 2), keepdims=True)
        df = m * (n - 1)
        se = np.sqrt((rest**2).sum((1, 2)) / df * 2 / n)
        t = (part[:, 1:].mean(2) - part[:, :1].mean(2)) / se[:, None]
        wrong |= (np.abs(t) > stats.t.isf(level / m / 2, df)).any(1)
    assert wrong.mean() < alpha + 3 * np.sqrt(alpha * (1 - alpha) / studies)


@pytest.mark.parametrize(
    ("field", "spending"),
    [
        ("sweep.decide.spending.looks", [6, 3]),
        ("sweep.decide.spending.looks", [1, 3]),
        ("sweep.decide.spending.looks", []),
        ("sweep.decide.spending.rule", {"rule": "obrian", "looks": [3, 6]}),
        ("sweep.decide.spending.look", {"look": [3, 6]}),
    ],
)
def test_looks_that_make_no_sense_are_refused(field, spending) -> None:
    with pytest.raises(ConfigError) as error:
        DecideConfig(spending=spending)
    assert error.value.field == field


def test_the_first_seeds_are_one_of_the_looks() -> None:
    section = {"question": "?", "factors": {"norm": ["norm=rms"]}, "decide": {"spending": [3, 6]}}
    assert SweepConfig.from_mapping(section).decide.frozen(1)["spending"]["looks"] == [3, 6]
    with pytest.raises(ConfigError, match="Start with 3 seeds"):
        SweepConfig.from_mapping({**section, "seeds": 4})
