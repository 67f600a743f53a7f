"""Ladders in several orders, samples, and what an arm is shared by."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.design import BASELINE, DESIGNS, INFO, Level
from ablate.design.ladder import ladder_orders
from ablate.errors import ConfigError, PlanError


def made(k: int) -> dict[str, list[Level]]:
    return {f"f{i}": [Level(label="on", overrides=(f"f{i}=1",))] for i in range(k)}


def on(arm) -> frozenset[str]:
    return frozenset(f for f, label in arm.levels.items() if label == "on")


@given(k=st.integers(2, 6), data=st.data())
def test_orders_share_the_arms_of_equal_sets(k, data) -> None:
    orders = data.draw(st.integers(1, min(12, math.factorial(k))))
    seed = data.draw(st.integers(0, 99))
    arms = DESIGNS["ladder"](made(k), orders=orders, draw_seed=seed)
    paths = ladder_orders(made(k), orders=orders, draw_seed=seed)
    assert len({tuple(p) for p in paths}) == len(paths) == orders, "distinct orders"
    assert all(sorted(p) == sorted(made(k)) for p in paths)
    sets = {frozenset(p[:i]) for p in paths for i in range(k + 1)}
    assert [on(a) for a in arms] == list(dict.fromkeys(map(on, arms)))
    assert {on(a) for a in arms} == sets, "one arm for each set of changes, however it is reached"
    assert len(arms) <= orders * (k - 1) + 2
    by_name = {a.name: a for a in arms}
    for arm in arms[1:]:
        below = on(by_name[arm.reference])
        assert below < on(arm)
        assert len(on(arm) - below) == 1
        assert any(on(arm) == set(p[: len(on(arm))]) for p in paths)
    info = INFO["ladder"](made(k), orders=orders, draw_seed=seed)
    assert len(info["orders"]) == orders
    for climbed, steps in zip(info["orders"], info["steps"], strict=True):
        assert climbed[0] == BASELINE
        assert on(by_name[climbed[-1]]) == set(made(k)), "every order ends with everything on"
        for below, above, step in zip(climbed, climbed[1:], steps, strict=False):
            assert on(by_name[above]) - on(by_name[below]) == {step}


@given(k=st.integers(2, 4), data=st.data())
def test_any_orders_telescope_to_the_whole_gain_and_all_give_the_shapley_value(k, data) -> None:
    values = {
        frozenset(s): data.draw(st.integers(-50, 50))
        for n in range(k + 1)
        for s in itertools.combinations(made(k), n)
    }
    arms = {a.name: a for a in DESIGNS["ladder"](made(k), orders=math.factorial(k))}
    info = INFO["ladder"](made(k), orders=math.factorial(k))
    share = dict.fromkeys(made(k), 0)
    for climbed, steps in zip(info["orders"], info["steps"], strict=True):
        gains = [values[on(arms[b])] - values[on(arms[a])] for a, b in itertools.pairwise(climbed)]
        assert sum(gains) == values[frozenset(made(k))] - values[frozenset()]
        for step, gain in zip(steps, gains, strict=True):
            share[step] += gain
    for player in made(k):
        rest = [f for f in made(k) if f != player]
        exact = sum(
            math.factorial(n) * math.factorial(k - 1 - n)
            * (values[frozenset(s) | {player}] - values[frozenset(s)])
            for n in range(k)
            for s in itertools.combinations(rest, n)
        )  # fmt: skip
        assert share[player] == exact


def test_orders_are_drawn_uniformly() -> None:
    counts = dict.fromkeys(itertools.permutations(made(3)), 0)
    for seed in range(1200):
        counts[tuple(ladder_orders(made(3), orders=1, draw_seed=seed)[0])] += 1
    assert max(counts.values()) < 280
    assert min(counts.values()) > 130, counts


def test_words_for_orders() -> None:
    given_order, reverse = list(made(3)), list(made(3))[::-1]
    assert ladder_orders(made(3)) == [given_order]
    assert ladder_orders(made(3), orders="reverse") == [reverse]
    assert ladder_orders(made(3), orders=["given", "reverse"]) == [given_order, reverse]
    assert [a.name for a in DESIGNS["ladder"](made(3), orders="given")] == [
        BASELINE, "+f0", "+f1", "+f2",
    ]  # fmt: skip
    assert [a.name for a in DESIGNS["ladder"](made(3), orders="reverse")] == [
        BASELINE, "+f2", "without-f0", "full",
    ]  # fmt: skip
    for bad in ("random", [], 0, 7):
        with pytest.raises(ConfigError, match=r"sweep\.orders"):
            ladder_orders(made(3), orders=bad)
    two = {"a": [Level(label=x, overrides=(f"a={x}",)) for x in "xy"], **made(1)}
    with pytest.raises(PlanError, match=r"sweep\.factors\.a has 2 levels"):
        DESIGNS["ladder"](two, orders="reverse")


@given(k=st.integers(2, 5), data=st.data())
def test_a_sample_is_of_the_asked_size_and_depends_on_its_seed_alone(k, data) -> None:
    n = data.draw(st.integers(1, 2**k - 1))
    arms = DESIGNS["random"](made(k), arms=n, draw_seed=3)
    assert len(arms) == n + 1
    assert len({on(a) for a in arms}) == n + 1
    assert arms[0].name == BASELINE
    if n == 2**k - 1:
        assert {a.name for a in arms} == {a.name for a in DESIGNS["factorial"](made(k))}


def test_other_seeds_draw_other_samples() -> None:
    drawn = {
        tuple(a.name for a in DESIGNS["random"](made(6), draw_seed=seed)) for seed in range(20)
    }
    assert len(drawn) > 15
    with pytest.raises(ConfigError, match="between 1 and 3"):
        DESIGNS["random"](made(2), arms=4)
