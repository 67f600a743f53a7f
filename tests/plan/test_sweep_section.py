"""The `sweep:` section: read as written, refused by field."""

from __future__ import annotations

import pytest

from ablate.errors import ConfigError
from ablate.plan.factors import read_factors
from ablate.plan.sweep import SweepConfig

GOOD = {"question": "Which?", "factors": {"norm": ["norm=rms"]}}


def test_the_defaults_of_a_sweep() -> None:
    sweep = SweepConfig.from_mapping(GOOD)
    assert sweep.seed_list == [0, 1, 2]
    assert sweep.rates == []
    assert sweep.match == "none"
    assert (sweep.decide.metric, sweep.decide.alpha, sweep.decide.correction) == (
        "val/bpb",
        0.05,
        "holm",
    )


def test_seeds_are_a_count_or_a_list_and_rates_may_be_text() -> None:
    sweep = SweepConfig.from_mapping({**GOOD, "seeds": [4, 2], "lr": ["1e-3", 2e-3]})
    assert sweep.seed_list == [4, 2]
    assert sweep.rates == [0.001, 0.002]
    assert SweepConfig.from_mapping({**GOOD, "lr": 0.01}).rates == [0.01]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("sweep.question", {"question": " "}),
        ("sweep.design", {"design": "lader"}),
        ("sweep.seeds", {"seeds": 0}),
        ("sweep.seeds", {"seeds": 2.5}),
        ("sweep.seeds", {"seeds": []}),
        ("sweep.seeds", {"seeds": [1, 1]}),
        ("sweep.seeds", {"seeds": [-1]}),
        ("sweep.lr", {"lr": []}),
        ("sweep.lr", {"lr": [0.0]}),
        ("sweep.lr", {"lr": [1e-3, 1e-3]}),
        ("sweep.match", {"match": "parameters"}),
        ("sweep.pilot", {"pilot": 1}),
        ("sweep.noise", {"noise": 0.0}),
        ("sweep.throughput", {"throughput": -1}),
        ("sweep.resolution", {"resolution": 3}),
        ("sweep.draw_seed", {"draw_seed": 3}),
        ("sweep.decide.margin", {"decide": {"margin": 0}}),
        ("sweep.baseline", {"baseline": "model=gpt2"}),
        ("sweep.decide.metric", {"decide": {"metric": "val/bbp"}}),
        ("sweep.decide.smallest_effect", {"decide": {"smallest_effect": 0}}),
        ("sweep.decide.alpha", {"decide": {"alpha": 5}}),
        ("sweep.decide.correction", {"decide": {"correction": "bonferroni"}}),
        ("sweep.decide.metrics", {"decide": {"metrics": "val/bpb"}}),
        ("sweep.factor", {"factor": {}}),
    ],
)
def test_a_mistake_is_named_by_its_field(field: str, change: dict) -> None:
    with pytest.raises(ConfigError) as error:
        SweepConfig.from_mapping({**GOOD, **change})
    assert error.value.field == field
    assert "\n" not in str(error.value)
    assert str(error.value).endswith((".", "?"))


def test_a_pilot_takes_the_first_seeds_and_further_ones_where_it_is_larger() -> None:
    for seeds, pilot, expected in ((3, 2, [0, 1]), (3, 5, [0, 1, 2, 3, 4]), ([7, 2], 3, [7, 2, 8])):
        sweep = SweepConfig.from_mapping({**GOOD, "seeds": seeds, "pilot": pilot})
        assert sweep.pilot_seeds == expected


def test_a_sweep_without_a_question_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sweep\.question"):
        SweepConfig.from_mapping({"factors": GOOD["factors"]})


def test_levels_are_overrides_groups_of_overrides_null_or_labelled() -> None:
    factors = read_factors(
        {
            "norm": ["norm=rms"],
            "position": [None, "position=rope", ["position=rope", "model.rope_theta=500000"]],
            "placement": "model.norm_after=true",
            "bias": ["model.include_bias=false"],
            "width": {
                "narrow": "model.d_model=64",
                "wide": ["model.d_model=256", "model.n_heads=8"],
                "base": None,
            },
            "rate": ["optim.lr=3e-4"],
        }
    )
    labels = {name: [level.label for level in levels] for name, levels in factors.items()}
    assert labels == {
        "norm": ["rms"],
        "position": ["baseline", "rope", "rope+rope_theta-500000"],
        "placement": ["norm_after"],
        "bias": ["no_include_bias"],
        "width": ["narrow", "wide", "base"],
        "rate": ["lr-3e-4"],
    }
    assert factors["position"][0].is_baseline
    assert factors["width"][2].is_baseline
    assert factors["width"][1].overrides == ("model.d_model=256", "model.n_heads=8")


@pytest.mark.parametrize(
    ("field", "factors"),
    [
        ("sweep.factors.norm", {"norm": []}),
        ("sweep.factors.norm", {"norm": None}),
        ("sweep.factors.norm", {"norm": 3}),
        ("sweep.factors.norm[0]", {"norm": [3]}),
        ("sweep.factors.norm[0]", {"norm": ["rms"]}),
        ("sweep.factors.norm[1]", {"norm": ["norm=rms", "seed=3"]}),
        ("sweep.factors.norm.a", {"norm": {"a": ["runs_dir=x"]}}),
    ],
)
def test_a_bad_level_is_named(field: str, factors: dict) -> None:
    with pytest.raises(ConfigError) as error:
        read_factors(factors)
    assert error.value.field == field
