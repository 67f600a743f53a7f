"""Matching: within 1 %, width before depth, or refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ablate.errors import PlanError
from ablate.model import count
from ablate.model.config import ModelConfig
from ablate.plan import plan_sweep
from ablate.plan.match import TOLERANCE, match
from ablate.rundir import State, StudyDir, write_json

BASE = {"d_model": 64, "n_heads": 4, "n_layers": 4, "vocab_size": 257, "embedding_size": None,
        "max_sequence_length": 128, "eos_token_id": 256, "pad_token_id": 256}  # fmt: skip

arms = st.fixed_dictionaries(
    {},
    optional={
        "activation_type": st.sampled_from(["gelu", "swiglu", "relu2"]),
        "rope": st.just(True),
        "weight_tying": st.booleans(),
        "include_bias": st.booleans(),
        "attention_layer_norm": st.booleans(),
        "n_kv_heads": st.sampled_from([1, 2, 4]),
        "n_layers": st.integers(3, 6),
        "block_group_size": st.just(1),
    },
)


def flops(model: ModelConfig) -> int:
    return count.flops_per_token(model, 128)


@pytest.mark.parametrize("cost", [count.parameters, flops], ids=["params", "flops"])
@given(changes=arms)
def test_a_matched_arm_is_within_one_percent(cost, changes) -> None:
    base, arm = ModelConfig(**BASE), ModelConfig(**BASE).replace(**changes)
    target = cost(base)
    try:
        resized = match("x", arm, target, cost, "units")
    except PlanError:
        assume(False)
    after = arm.replace(**{name: new for name, (_, new) in resized.items()})
    assert abs(cost(after) - target) <= TOLERANCE * target
    for name, (old, _) in resized.items():
        assert old == (arm.hidden_size if name == "mlp_hidden_size" else getattr(arm, name))
    if abs(cost(arm) - target) <= TOLERANCE * target:
        assert resized == {}, "what is equal already keeps its tensors"
    assert after.hidden_size % 2 == 0


def test_the_width_is_tried_before_the_depth() -> None:
    base = ModelConfig(**BASE, activation_type="gelu")
    arm = base.replace(activation_type="swiglu")
    assert list(match("x", arm, count.parameters(base), count.parameters, "parameters")) == [
        "mlp_hidden_size"
    ]


def test_depth_follows_where_no_width_is_enough() -> None:
    base = ModelConfig(**BASE, mlp_hidden_size=16)
    arm = base.replace(n_layers=5)
    resized = match("x", arm, count.parameters(base), count.parameters, "parameters")
    assert resized["n_layers"][1] < 5


def test_an_impossible_match_is_refused_with_the_arm_and_the_figures() -> None:
    base = ModelConfig(**BASE)
    arm = base.replace(d_model=512, n_heads=8)
    with pytest.raises(
        PlanError, match=r"Arm wide cannot be matched to the baseline's [\d,]+ parameters"
    ):
        match("wide", arm, count.parameters(base), count.parameters, "parameters")


def _measure(made, runs, speeds: dict[str, float], name: str = "speed") -> None:
    """A finished study of this plan in which each arm ran at this speed."""
    study = StudyDir(runs / name)
    study.write_manifest(made.manifest())
    for trial in made.trials:
        folder = study.trial(trial.id)
        folder.create({}, made.steps)
        folder.write_state(State(status="done"))
        write_json(folder.summary_path, {"tokens_per_second": speeds[trial.arm], "val/bpb": 2.0})


SLOWER = {"activation": ["activation=swiglu"], "qk_norm": ["qk_norm=on"]}


def test_wallclock_makes_a_slower_arm_smaller_by_as_much(plan, tmp_path) -> None:
    with pytest.raises(PlanError, match=r"needs the measured speeds .* sweep\.match=none"):
        plan(factors=SLOWER, match="wallclock")
    first = plan(factors=SLOWER, seeds=1)
    speeds = {"baseline": 50_000.0, "activation-swiglu": 45_000.0, "qk_norm": 50_100.0}
    _measure(first, tmp_path / "runs", speeds)
    made = plan(factors=SLOWER, match="wallclock")
    before, after = first.arm("activation-swiglu"), made.arm("activation-swiglu")
    assert list(after.resized) == ["model.mlp_hidden_size"]
    predicted = speeds["activation-swiglu"] * before.flops_per_token / after.flops_per_token
    assert predicted == pytest.approx(speeds["baseline"], rel=TOLERANCE)
    assert made.arm("qk_norm").resized == {}, "within 1 % already"
    assert any("predicted" in note for note in made.notes)


def test_the_hours_are_those_of_measured_speeds_or_of_a_given_one(plan, tmp_path) -> None:
    made = plan(factors=SLOWER, seeds=2, budget={"steps": 100})
    assert made.cost.hours is None
    assert "sweep.throughput" in made.cost.speed
    given = plan(factors=SLOWER, seeds=2, budget={"steps": 100}, throughput=1000)
    by_flops = sum(made.tokens * a.flops_per_token / made.arms[0].flops_per_token * 2
                   for a in made.arms)  # fmt: skip
    assert given.cost.hours == pytest.approx(by_flops / 1000 / 3600)
    speeds = {"baseline": 5000.0, "activation-swiglu": 2500.0, "qk_norm": 4000.0}
    _measure(made, tmp_path / "runs", speeds)
    again = plan(factors=SLOWER, seeds=4, budget={"steps": 100})
    tokens = again.tokens * 4
    assert again.cost.hours == pytest.approx(sum(tokens / s for s in speeds.values()) / 3600)
    assert "speed" in again.cost.speed
    other = plan("size=4m", factors=SLOWER)
    assert other.cost.hours is None, "another size is no measure"


def test_a_plan_names_the_widths_of_a_tapered_arm(write_sweep, tmp_path) -> None:
    name = write_sweep(factors={"width": ["width=tapered"]}, match="params")
    plan = plan_sweep([f"sweep={name}"], cwd=tmp_path)
    (note,) = [n for n in plan.notes if n.startswith("width-tapered")]
    assert "layers, from the lowest" in note
    assert abs(plan.arms[1].parameters / plan.arms[0].parameters - 1) <= 0.01
    assert not plan.arms[1].resized
