"""Adopting a winner: its configuration becomes the baseline, and the lineage is kept."""

from __future__ import annotations

import pytest

from ablate.errors import ConfigError, StudyError
from ablate.launch.freeze import freeze
from ablate.plan import difference

FACTORS = {"activation": ["activation=swiglu"], "norm": ["norm=rms"], "qk_norm": ["qk_norm=on"]}


@pytest.fixture
def first(plan):
    made = plan(design="sequential", factors=FACTORS, match="params", budget={"steps": 20})
    freeze(made)
    return made


def test_the_adopted_arm_is_the_next_baseline_field_by_field(first, plan) -> None:
    rest = {"norm": ["norm=rms"], "qk_norm": ["qk_norm=on"]}
    name = "activation-swiglu"
    made = plan(
        name="second", design="sequential", factors=rest, match="params", budget={"steps": 20},
        baseline=[f"mine:{name}"], seeds=[3, 4, 5],
    )  # fmt: skip
    assert difference(first.arm(name).config, made.arms[0].config) == {}, "resized tensors too"
    assert made.arms[0].parameters == first.arm(name).parameters
    (entry,) = made.design_info["lineage"]
    assert (entry["study"], entry["arm"], entry["seeds"]) == ("mine", name, [0, 1, 2])
    assert not any("luck" in note for note in made.notes)
    freeze(made)
    third = plan(
        name="third", design="sequential", factors={"bias": ["bias=none"]},
        baseline=["second:qk_norm"], budget={"steps": 30},
    )  # fmt: skip
    assert [e["arm"] for e in third.design_info["lineage"]] == [name, "qk_norm"]
    assert third.arms[0].config["model"]["attention_layer_norm"]
    assert third.manifest()["design_info"]["lineage"] == third.design_info["lineage"]


def test_the_seeds_that_chose_an_arm_are_named(first, plan) -> None:
    again = {"name": "second", "design": "one_factor", "factors": {"bias": ["bias=none"]},
             "budget": {"steps": 20}}  # fmt: skip
    made = plan(baseline=["mine:norm-rms"], **again)
    assert any("sweep.seeds=[3,4,5]" in note for note in made.notes)
    other = plan(baseline=["mine:norm-rms", "bias=none"], **{**again, "factors": FACTORS_LEFT})
    assert any("include_bias" in note for note in other.notes), "what else differs is named"


FACTORS_LEFT = {"qk_norm": ["qk_norm=on"]}


def test_a_study_or_arm_that_is_not_there_is_refused(first, plan) -> None:
    with pytest.raises(ConfigError, match="Did you mean norm-rms"):
        plan(name="second", factors=FACTORS_LEFT, baseline=["mine:norm-rmss"])
    with pytest.raises(StudyError, match="no study 'yours'"):
        plan(name="second", factors=FACTORS_LEFT, baseline=["yours:norm-rms"])
