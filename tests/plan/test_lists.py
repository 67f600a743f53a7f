"""Levels that are zipped, multiplied and united; combinations that are left out by condition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.errors import ConfigError, PlanError
from ablate.plan.factors import read_factors

numbers = st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True)


def levels(value) -> list[tuple[str, ...]]:
    return [level.overrides for level in read_factors({"x": value})["x"]]


@given(numbers, numbers)
def test_zip_pairs_product_multiplies_union_appends(a, b) -> None:
    one, two = [f"a={n}" for n in a], [f"b={n}" for n in b]
    product = levels({"product": {"p": one, "q": two}})
    assert product == [(x, y) for x in one for y in two]
    assert levels({"union": [one, two]}) == [(x,) for x in one + two]
    assert levels({"union": [one, one]}) == [(x,) for x in one], "each level once"
    zipped = {"zip": {"p": one, "q": two}}
    if len(one) == len(two):
        assert levels(zipped) == list(zip(one, two, strict=True))
    else:
        with pytest.raises(ConfigError, match="must be of one length"):
            levels(zipped)


def test_they_nest_and_name_their_levels() -> None:
    value = {
        "union": [
            ["position=alibi"],
            {"product": {"position": ["position=rope"],
                         "theta": [None, "model.rope_theta=1e4"]}},
        ]
    }  # fmt: skip
    made = read_factors({"position": value})["position"]
    assert [level.label for level in made] == ["alibi", "rope", "rope+rope_theta-1e4"]
    both = read_factors({"size": {"zip": {"w": ["model.d_model=64"], "d": [None]}}})["size"]
    assert both[0].overrides == ("model.d_model=64",)
    labelled = read_factors({"x": {"zip": "a=1"}})["x"]
    assert labelled[0].label == "zip", "a label may be any word"


@pytest.mark.parametrize(
    "value",
    [
        {"zip": {"p": ["a=1"]}},
        {"zip": ["a=1", "b=1"]},
        {"union": {"p": ["a=1"]}},
        {"union": []},
        {"product": {"p": ["a=1"], "q": ["a=2"]}},
    ],
)
def test_what_cannot_be_combined_is_refused_by_its_field(value) -> None:
    with pytest.raises(ConfigError) as error:
        levels(value)
    assert error.value.field.startswith("sweep.factors.x.")


GRID = {
    "position": [None, "position=rope", "position=alibi"],
    "norm": [None, "norm=rms"],
}


@pytest.mark.parametrize(
    ("condition", "gone"),
    [
        ({"position": "alibi", "norm": "rms"}, {"position-alibi+norm-rms"}),
        ({"position": "changed", "norm": "rms"},
         {"position-alibi+norm-rms", "position-rope+norm-rms"}),
        ({"position": {"not": "baseline"}, "norm": "rms"},
         {"position-alibi+norm-rms", "position-rope+norm-rms"}),
        ({"position": {"not": ["rope", "alibi"]}, "norm": "rms"}, {"norm-rms"}),
        ({"position": {"not": "rope"}, "norm": "changed"}, {"norm-rms", "position-alibi+norm-rms"}),
    ],
)  # fmt: skip
def test_conditions_of_every_kind_leave_out_what_they_say(plan, condition, gone) -> None:
    everything = {a.name for a in plan(design="grid", factors=GRID).arms}
    kept = {a.name for a in plan(design="grid", factors=GRID, exclude=[condition]).arms}
    assert everything - kept == gone


@pytest.mark.parametrize("condition", [{"norm": {"but": "rms"}}, {"norm": "rmsnorm"}])
def test_a_condition_that_says_nothing_is_refused(plan, condition) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.exclude\[0\]\.norm"):
        plan(design="grid", factors=GRID, exclude=[condition])


def test_options_of_another_design_are_refused(plan) -> None:
    with pytest.raises(ConfigError, match=r"design=grid does not read it, only ladder"):
        plan(design="grid", factors=GRID, orders="reverse")
    steps = {k: v[1:2] for k, v in GRID.items()}
    info = plan(design="ladder", factors=steps, orders=2).design_info
    assert len(info["orders"]) == 2
    with pytest.raises(PlanError, match="ladders of their own"):
        plan(design="ladder", factors=steps, orders=2, exclude=[{"norm": "rms"}])
