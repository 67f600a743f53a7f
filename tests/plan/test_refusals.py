"""What would not be an honest comparison is refused, with the arm, the fields and the reason."""

from __future__ import annotations

import pytest

from ablate.errors import AblateError, ConfigError, PlanError


@pytest.mark.parametrize(
    ("level", "field", "reason"),
    [
        ("activation=gelu_tanh", "changes nothing", ""),
        ("model.alibi_bias_max=4.0", "model.alibi_bias_max", "position scheme is learned"),
        ("model.rope_theta=500000", "model.rope_theta", "position scheme is learned"),
        (
            "model.attention_layer_norm_with_affine=false",
            "attention_layer_norm_with_affine",
            "no QK-norm",
        ),
        (
            "model.sliding_window=4096",
            "model.sliding_window",
            "no window is shorter than the sequence of 128",
        ),
        ("model.n_kv_heads=4", "model.n_kv_heads", "means the same"),
        ("model.mlp_hidden_size=256", "model.mlp_hidden_size", "means the same"),
        ("block=llama", "model.block_type", "another road to the same function"),
        ("attention=math", "model.attention_backend", "another road to the same function"),
        ("norm=low_precision", "model.layer_norm_type", "means the same"),
        ("train.checkpoint_every=7", "train.checkpoint_every", "does not change the result"),
        ("model.precision=amp_bf16", "model.precision", "does not change the result"),
        ("clip.max_ratio=1.2", "clip.max_ratio", "only clip.name=ratio"),
        ("optim.momentum=0.5", "optim.momentum", "only optim.name=muon"),
        ("schedule.exponent=-0.4", "schedule.exponent", "only schedule.name=power_lr"),
        (
            ["position=alibi", "model.rope_theta=500000"],
            "model.rope_theta",
            "position scheme is alibi",
        ),
    ],
)
def test_an_inert_toggle_is_refused_with_field_and_reason(plan, level, field, reason) -> None:
    with pytest.raises(PlanError) as error:
        plan(factors={"x": [level]})
    text = str(error.value)
    assert "Arm x" in text
    assert field in text
    assert reason in text
    assert "\n" not in text


def test_a_field_that_a_toggle_switches_off_is_no_inert_field(plan) -> None:
    # rope_theta is read by the reference and no longer by the arm: part of the change.
    made = plan(
        baseline=["model=gpt2", "size=tiny", "position=rope_500k"],
        factors={"p": ["position=learned"]},
    )
    assert [arm.name for arm in made.arms] == ["baseline", "p-position-learned"]


@pytest.mark.parametrize("design", ["factorial", "leave_one_out"])
def test_two_toggles_that_set_one_field_differently_are_refused_by_name(plan, design) -> None:
    factors = {"norm": ["norm=rms"], "eps": ["model.layer_norm_eps=1e-4"]}
    with pytest.raises(PlanError) as error:
        plan(design=design, factors=factors)
    text = str(error.value)
    assert "norm=rms sets model.layer_norm_eps=1e-06" in text
    assert "model.layer_norm_eps=1e-4 sets it to 0.0001" in text


def test_two_toggles_of_one_group_are_refused(plan) -> None:
    factors = {"a": ["position=rope"], "b": ["position=alibi"]}
    with pytest.raises(PlanError, match=r"position=rope sets .*position=alibi sets it"):
        plan(design="factorial", factors=factors)


def test_the_same_value_twice_is_no_conflict(plan) -> None:
    factors = {"norm": ["norm=rms"], "qk": [["qk_norm=on", "model.layer_norm_eps=1e-6"]]}
    with pytest.raises(PlanError, match=r"changes nothing|one and the same"):
        plan(design="factorial", factors={**factors, "eps": ["model.layer_norm_eps=1e-6"]})
    assert len(plan(design="leave_one_out", factors=factors).arms) == 4


def test_overrides_of_one_level_go_together_and_may_refine_each_other(plan) -> None:
    made = plan(factors={"theta": [["position=rope", "model.rope_theta=500"]]})
    assert made.arms[1].config["model"]["rope_theta"] == 500


def test_a_value_of_the_baseline_that_beats_a_toggle_is_refused(plan) -> None:
    base = ["model=gpt2", "size=tiny", "model.layer_norm_eps=1e-4"]
    with pytest.raises(
        PlanError, match=r"norm=rms sets .*model\.layer_norm_eps=1e-4 sets it to 0\.0001"
    ):
        plan(baseline=base, factors={"norm": ["norm=rms"]})


def test_a_value_of_the_command_line_that_beats_a_toggle_is_refused(plan) -> None:
    with pytest.raises(PlanError, match=r"model\.rope=false sets it to false"):
        plan("model.rope=false", factors={"position": ["position=rope"]})


def test_a_later_rung_of_a_ladder_may_replace_an_earlier_one_and_it_is_shown(plan) -> None:
    made = plan(
        design="ladder", factors={"norm": ["norm=rms"], "eps": ["model.layer_norm_eps=1e-4"]}
    )
    assert made.arm("+layer_norm_eps-1e-4").replaces == [
        "model.layer_norm_eps=1e-4 replaces model.layer_norm_eps=1e-06 of norm=rms"
    ]
    assert made.arm("+norm-rms").replaces == []


def test_a_rung_that_would_lose_against_an_earlier_one_is_refused(plan) -> None:
    # Values beat groups, whatever the order: the group of the second rung would not have its way.
    with pytest.raises(PlanError, match=r"Arm \+norm-rms: norm=rms sets model\.layer_norm_eps"):
        plan(design="ladder", factors={"eps": ["model.layer_norm_eps=1e-4"], "norm": ["norm=rms"]})


def test_an_illegal_combination_names_its_arm(plan) -> None:
    factors = {"peri": ["model.peri_norm=true"], "post": ["model.norm_after=true"]}
    with pytest.raises(PlanError, match=r"^Arm peri_norm\+post-norm_after: model\.peri_norm=true"):
        plan(design="factorial", factors=factors)
    with pytest.raises(PlanError, match=r"^Arm width-d_model-65: model\.d_model=65"):
        plan(factors={"width": ["model.d_model=65"]})
    with pytest.raises(PlanError, match=r"^Arm norm-rmss: norm=rmss: there is no such option"):
        plan(factors={"norm": ["norm=rmss"]})
    with pytest.raises(PlanError, match=r"^Arm layer_norm_tipe-rms: .*layer_norm_tipe"):
        plan(factors={"norm": ["model.layer_norm_tipe=rms"]})


def test_two_arms_that_are_the_same_are_refused_by_name(plan) -> None:
    factors = {"kv": {"one": "model.n_kv_heads=1", "mqa": "kv_heads=mqa"}}
    with pytest.raises(PlanError, match="Arms kv-one and kv-mqa are one and the same"):
        plan(factors=factors)


def test_a_combination_of_a_grid_that_spells_out_the_baseline_is_the_baseline(plan) -> None:
    factors = {
        "position": ["position=learned", "position=rope"],
        "norm": ["norm=layer", "norm=rms"],
    }
    made = plan(design="grid", factors=factors)
    assert len(made.arms) == 4
    assert made.arms[0].name == "baseline"
    assert made.arms[0].levels == {
        "position": "learned",
        "norm": "layer",
    }
    assert made.factors == {"position": ["learned", "rope"], "norm": ["layer", "rms"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"lr": [1e-3, 2e-3], "factors": {"lr": ["optim.lr=3e-3"]}},
            "sets optim.lr, which sweep.lr sets",
        ),
        (
            {"budget": {"steps": 9}, "factors": {"t": ["train.steps=3"]}},
            "train.steps, which sweep.budget sets",
        ),
        ({"factors": {"t": ["train.steps=3"]}}, "Unequal schedules"),
        (
            {"budget": {"tokens": "1M"}, "factors": {"b": ["train.batch_size=4"]}},
            "not an equal budget",
        ),
        (
            {"match": "params", "factors": {"w": ["model.mlp_ratio=8"]}},
            "would resize mlp_hidden_size",
        ),
        ({"match": "params", "factors": {"w": ["model.d_model=512"]}}, "cannot be matched"),
        ({"exclude": [{"norm": "rms"}], "factors": {"norm": ["norm=rms"]}}, "leaves no arm"),
        (
            {"exclude": [{"norm": "baseline"}], "factors": {"norm": ["norm=rms"]}},
            "excludes the baseline",
        ),
        (
            {"factors": {"a b": {"x": "norm=rms"}, "a-b": {"x": "bias=none"}}},
            "Two arms would be called a-b-x",
        ),
        ({"factors": {}}, "sweep.factors is empty"),
        (
            {"design": "nothing.there:design", "factors": {"norm": ["norm=rms"]}},
            "cannot be imported",
        ),
    ],
)
def test_contradictions_of_a_sweep_are_refused(plan, fields, message) -> None:
    with pytest.raises(PlanError) as error:
        plan(**fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["seed=3"], "seed"),
        (["sweep.seeds=0"], "sweep.seeds"),
        (["sweep.matsch=params"], "sweep.matsch"),
        (["sweep.decide.alpha=2"], "sweep.decide.alpha"),
        (["sweep.match=wallclock"], "sweep.match"),
        (["sweep.pilot=1"], "sweep.pilot"),
        (["sweep.budget=40"], "sweep.budget"),
        (["train.step=3"], "train.step"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(plan, overrides, field) -> None:
    with pytest.raises(AblateError) as error:
        plan(*overrides, factors={"norm": ["norm=rms"]}, budget={"steps": 9})
    assert field in str(error.value)


def test_an_unknown_exclusion_is_named(plan) -> None:
    for predicate in ({"nrom": "rms"}, {"norm": "rmss"}):
        with pytest.raises(ConfigError, match=r"sweep\.exclude\[0\]"):
            plan(factors={"norm": ["norm=rms"], "bias": ["bias=none"]}, exclude=[predicate])
