"""Laws of the designs, over drawn factors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.design import BASELINE, DESIGNS, ArmSpec, Level
from ablate.errors import PlanError

names = st.text("abcdefgh_", min_size=1, max_size=4)


@st.composite
def factors(draw, min_factors: int = 1, max_changes: int = 3, null: bool = True):
    chosen = draw(st.lists(names, min_size=min_factors, max_size=4, unique=True))
    drawn = {}
    for factor in chosen:
        labels = draw(st.lists(st.integers(0, 99), min_size=1, max_size=max_changes, unique=True))
        levels = [Level(label=f"v{label}", overrides=(f"{factor}={label}",)) for label in labels]
        if null and draw(st.booleans()):
            at = draw(st.integers(0, len(levels)))
            levels.insert(at, Level(label="base"))
        drawn[factor] = levels
    return drawn


def changed(levels: list[Level]) -> list[Level]:
    return [level for level in levels if level.overrides]


def by_name(arms: list[ArmSpec]) -> dict[str, ArmSpec]:
    return {arm.name: arm for arm in arms}


def suited(design: str):
    if design == "leave_one_out":
        return factors(min_factors=2, max_changes=1)
    if design == "fractional":
        return factors(min_factors=3, max_changes=1)
    return factors(null=design != "ladder")


def options(design: str, data, given_factors) -> dict[str, Any]:
    """Arguments that the design takes of these factors."""
    total = math.prod(1 + len(changed(levels)) for levels in given_factors.values())
    seed = {"draw_seed": data.draw(st.integers(0, 9))}
    if design == "fractional":
        return {"resolution": data.draw(st.sampled_from([3, 4, 5]))}
    if design == "random":
        return {"arms": data.draw(st.integers(1, total - 1)), **seed}
    if design == "ladder" and all(len(levels) == 1 for levels in given_factors.values()):
        most = math.factorial(len(given_factors))
        words = st.sampled_from(["given", "reverse", ["given", "reverse"]])
        return {"orders": data.draw(st.one_of(words, st.integers(1, most))), **seed}
    return {}


@pytest.mark.parametrize("design", DESIGNS)
@given(data=st.data())
def test_every_design_keeps_the_laws_of_arms(design: str, data) -> None:
    given_factors = data.draw(suited(design))
    chosen_options = options(design, data, given_factors)
    arms = DESIGNS[design](given_factors, **chosen_options)
    assert arms == DESIGNS[design](given_factors, **chosen_options), "deterministic"
    assert arms[0].name == BASELINE
    assert arms[0].overrides == ()
    assert arms[0].reference is None
    assert len(by_name(arms)) == len(arms), "names are unique"
    assert len({frozenset(a.levels.items()) for a in arms}) == len(arms), "no arm twice"
    seen: set[str] = set()
    for arm in arms:
        assert list(arm.levels) == list(given_factors), "a level of every factor, in their order"
        assert (arm.reference is None) == (arm.name == BASELINE)
        assert arm.reference is None or arm.reference in seen, "a reference precedes its arm"
        labels = {f: {lv.label: lv for lv in levels} for f, levels in given_factors.items()}
        chosen = [labels[f].get(label, Level(label=label)) for f, label in arm.levels.items()]
        assert arm.overrides == tuple(o for level in chosen for o in level.overrides)
        assert arm.name == BASELINE or arm.overrides
        seen.add(arm.name)


@given(factors())
def test_one_factor_has_one_change_in_each_arm(given_factors) -> None:
    arms = DESIGNS["one_factor"](given_factors)
    assert len(arms) == 1 + sum(len(changed(levels)) for levels in given_factors.values())
    for arm in arms[1:]:
        assert arm.reference == BASELINE
        assert sum(arm.levels[f] != arms[0].levels[f] for f in given_factors) == 1


@given(factors(min_factors=2, max_changes=1))
def test_leave_one_out_compares_with_the_full_arm(given_factors) -> None:
    arms = DESIGNS["leave_one_out"](given_factors)
    base, full, *rest = arms
    assert len(arms) == 2 + len(given_factors)
    assert full.reference == BASELINE
    assert all(full.levels[f] != base.levels[f] for f in given_factors)
    for factor, arm in zip(given_factors, rest, strict=True):
        assert arm.reference == full.name
        assert [f for f in given_factors if arm.levels[f] != full.levels[f]] == [factor]
        assert arm.levels[factor] == base.levels[factor]


@given(factors(null=False))
def test_a_rung_of_a_ladder_is_compared_with_the_previous_one(given_factors) -> None:
    arms = DESIGNS["ladder"](given_factors)
    assert len(arms) == 1 + sum(len(levels) for levels in given_factors.values())
    for below, arm in itertools.pairwise(arms):
        assert arm.reference == below.name
        assert sum(arm.levels[f] != below.levels[f] for f in given_factors) == 1
    top = {factor: levels[-1].label for factor, levels in given_factors.items()}
    assert arms[-1].levels == top


@given(factors())
def test_grid_is_the_product_of_the_listed_levels(given_factors) -> None:
    arms = DESIGNS["grid"](given_factors)
    has_baseline = all(any(not lv.overrides for lv in levels) for levels in given_factors.values())
    product = math.prod(len(levels) for levels in given_factors.values())
    assert len(arms) == product + (not has_baseline)
    assert {a.reference for a in arms[1:]} <= {BASELINE}


@given(factors())
def test_factorial_is_balanced(given_factors) -> None:
    arms = DESIGNS["factorial"](given_factors)
    assert len(arms) == math.prod(1 + len(changed(levels)) for levels in given_factors.values())
    for factor, levels in given_factors.items():
        counts = {arm.levels[factor]: 0 for arm in arms}
        for arm in arms:
            counts[arm.levels[factor]] += 1
        assert len(set(counts.values())) == 1, "each level equally often"
        assert len(counts) == 1 + len(changed(levels))


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"a": []},
        {"a": [Level(label="base")]},
        {"a": [Level(label="x", overrides=("a=1",))] * 2},
    ],
    ids=["no factor", "no level", "only the baseline's level", "a label twice"],
)
def test_factors_that_vary_nothing_are_refused(design: str, bad) -> None:
    with pytest.raises(PlanError):
        DESIGNS[design](bad)


def test_designs_say_what_they_cannot_take() -> None:
    one = Level(label="x", overrides=("a=1",))
    two = Level(label="y", overrides=("a=2",))
    null = Level(label="base")
    with pytest.raises(PlanError, match="two factors or more"):
        DESIGNS["leave_one_out"]({"a": [one]})
    with pytest.raises(PlanError, match=r"sweep\.factors\.a has 2"):
        DESIGNS["leave_one_out"]({"a": [one, two], "b": [one]})
    with pytest.raises(PlanError, match="Remove the null"):
        DESIGNS["ladder"]({"a": [null, one]})
