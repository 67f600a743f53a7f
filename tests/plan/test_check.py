"""`ablate plan --check`: every arm is built, and a toggle without effect is refused."""

from __future__ import annotations

import json
import uuid

import pytest

from ablate.cli import check, plan
from ablate.errors import AblateError, PlanError
from ablate.model.config import ModelConfig
from ablate.plan import plan_sweep


@pytest.fixture
def checked(write_sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(**fields):
        return check.check(plan_sweep([f"sweep={write_sweep(**fields)}"], cwd=tmp_path))

    return make


def test_every_arm_is_built_and_each_toggle_has_a_proof(checked) -> None:
    levels = {
        "activation": "activation=swiglu",
        "norm": "norm=rms",
        "eps": "model.layer_norm_eps=1e-3",
        "position": "position=rope",
        "theta": ["position=rope", "model.rope_theta=500000"],
        "window": "window=sliding",
        "qk_norm": "qk_norm=per_head",
        "placement": "placement=peri",
        "bias": "bias=none",
        "kv": "kv_heads=mqa",
        "tying": "tying=untied",
        "init": "init=mitchell",
        "dropout": "dropout=none",
        "rate": "optim.lr=3e-3",
    }
    proofs = {p.arm: p for p in checked(factors={"x": levels})}
    assert len(proofs) == 1 + len(levels)
    for name, proof in proofs.items():
        assert proof.parameters > 0
        assert proof.not_traced is None, "nothing of ours asks for values"
        assert proof.traced
        what = {"baseline": "built", "x-dropout": "the training differs", "x-rate": "the training"}
        what["x-init"] = "initial weights differ"
        assert proof.proof.startswith(what.get(name, "outputs differ")), (name, proof.proof)


@pytest.mark.parametrize("strategy", ["null", "whole_layer", "fine_grained"])
def test_tables_that_autograd_does_not_save_are_no_error_of_the_formula(checked, strategy) -> None:
    """A bias of ALiBi is there for all steps; a layer that is computed again is handed it anew."""
    words = ["model=olmo2", "size=1m", f"train.activation_checkpointing={strategy}"]
    proofs = checked(baseline=words, factors={"position": ["position=alibi", "position=relative"]})
    assert all(abs(proof.off) < 0.01 for proof in proofs), [(p.arm, p.off) for p in proofs]


def test_what_norms_in_float16_keep_is_in_the_formula(checked) -> None:
    """Within 2 %: in a model so small the mask of a table counts."""
    levels = {
        "fused": "precision=fp16",
        "naive": "precision=fp16_naive",
        "partly": ["precision=fp16_protected", "precision.foundation_layers=1"],
    }
    proofs = {p.arm: p for p in checked(factors={"x": levels})}
    for name in levels:
        off = proofs[f"x-{name}"].off
        assert off is not None
        assert abs(off) < 0.02
    fused, naive = proofs["x-fused"], proofs["x-naive"]
    assert naive.traced is not None
    assert fused.traced is not None
    share = (naive.activations - fused.activations) / (naive.traced - fused.traced)
    assert share == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("level", "proof"),
    [
        ("spikes=rewind", "the training differs in spikes.name"),
        ("batching=packed", "the training differs in batching.name"),
        ("loss=z_loss", "the training differs in loss.z_loss"),
        ("evaluate.token_noise=0.1", "what is measured differs in evaluate.token_noise"),
    ],
)
def test_what_is_no_part_of_the_model_needs_no_other_outputs(checked, level, proof: str) -> None:
    """Sweeps of ours (claims/batching, claims/cache, stability/planted) have such arms."""
    assert [p.proof for p in checked(factors={"x": [level]})] == ["built", proof]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("def mine(config, horizon):\n    return lambda step: horizon.peak / step\n", None),
        ("def mine(step):\n    return 1e-3\n", r"called with \(config, horizon\): too many"),
        ("def mine(config, horizon):\n    return horizon.peak\n", "returned 0.001, no function"),
        (
            "def mine(config, horizon):\n    return lambda step: horizon.pike\n",
            "AttributeError: 'Horizon' object has no attribute 'pike'",
        ),
    ],
)
def test_a_schedule_of_ones_own_is_called(checked, tmp_path, monkeypatch, function, said) -> None:
    name = f"rates_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(function)
    monkeypatch.syspath_prepend(str(tmp_path))
    factors = {"rate": [f"schedule.name={name}:mine"]}
    if said is None:
        assert checked(factors=factors)[1].proof == "the training differs in schedule.name"
        return
    with pytest.raises(PlanError, match=rf"schedule\.name={name}:mine: .*{said}"):
        checked(factors=factors)


def test_pain_32_a_toggle_of_the_users_own_that_does_nothing_is_found(
    checked, tmp_path, monkeypatch
) -> None:
    (tmp_path / "my_norms.py").write_text(
        "from ablate.model.norm import NORMS\nclass Same(NORMS['default']):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PlanError, match="up to rounding"):
        checked(factors={"x": ["model.layer_norm_type=my_norms:Same"]})


def test_what_matching_resized_is_no_proof(checked, tmp_path, monkeypatch) -> None:
    (tmp_path / "my_idle.py").write_text(
        "import torch\n"
        "from ablate.model.norm import NORMS\n"
        "class Idle(NORMS['default']):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n"
        "        self.idle_weight = torch.nn.Parameter(torch.zeros(999))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    fields = {"factors": {"x": ["model.layer_norm_type=my_idle:Idle"]}, "match": "params"}
    with pytest.raises(PlanError, match="up to rounding"):
        checked(**fields)


def test_a_class_that_looks_at_its_values_is_checked_and_its_activations_are_not_traced(
    write_sweep, tmp_path, monkeypatch, capsys
) -> None:
    """Fake tensors have no values; the class trains all the same, and is compared by running."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_guarded.py").write_text(
        "from ablate.model.norm import NORMS\n"
        "class Guarded(NORMS['rms']):\n"
        "    def forward(self, x):\n"
        "        if float(x.detach().abs().max()) > 1e4:\n"
        "            x = x / 2\n"
        "        return super().forward(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    factors = {"norm": {"guarded": "model.layer_norm_type=my_guarded:Guarded"}}
    words = [f"sweep={write_sweep(factors=factors)}", "--check"]
    assert plan.main([*words, "--json"]) == 0
    base, own = json.loads(capsys.readouterr().out)["checks"]
    assert base["traced"] > 0
    assert base["not_traced"] is None
    assert own["proof"].startswith("outputs differ")
    assert own["traced"] is None
    assert own["not_traced"].startswith("DataDependentOutputException: ")
    assert plan.main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "norm-guarded: its activations were not traced (DataDependentOutputException" in shown
    assert "at the most, in baseline: " in shown


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return x[..., :-1]", "is written at {file}:6"),
        ("return x @ x[:, :3]", "raised it at {file}:7"),
        ("raise ValueError('my own bug')", "raised it at {file}:7"),
    ],
)
def test_a_norm_of_ones_own_that_fails_is_named_with_its_line(
    checked, tmp_path, monkeypatch, line: str, said: str
) -> None:
    """Also where it is our code that cannot take what it returned."""
    name = f"failing_{uuid.uuid4().hex[:8]}"
    file = tmp_path / f"{name}.py"
    file.write_text(
        "from torch import nn\n\nclass Norm(nn.Module):\n"
        "    def __init__(self, size, *, eps, affine, bias):\n        super().__init__()\n"
        f"    def forward(self, x):\n        {line}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PlanError) as caught:
        checked(factors={"norm": [f"model.layer_norm_type={name}:Norm"]})
    found = str(caught.value)
    assert f"model.layer_norm_type={name}:Norm {said.format(file=file)}. Mend it" in found
    assert "\n" not in found


def test_large_models_are_shrunk_with_their_proportions() -> None:
    from ablate.model import compare

    big = ModelConfig(
        d_model=5120,
        n_heads=40,
        n_kv_heads=8,
        n_layers=64,
        mlp_hidden_size=55296,
        rope=True,
        sliding_window_pattern=[4096, 4096, 4096, -1],
        max_sequence_length=8192,
    )
    small = compare.shrink(big, 8192)
    assert small.n_heads % small.effective_n_kv_heads == 0
    assert small.effective_n_kv_heads < small.n_heads
    assert [small.window(i) for i in range(small.n_layers)] == [16, 16, 16, None]
    assert small.hidden_size / small.d_model == pytest.approx(55296 / 5120, rel=0.02)


def test_json_carries_the_proofs(write_sweep, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        plan.main([f"sweep={write_sweep(factors={'n': ['norm=rms']})}", "--check", "--json"]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert [c["arm"] for c in shown["checks"]] == ["baseline", "n-norm-rms"]
    assert [c["parameters"] for c in shown["checks"]] == [a["parameters"] for a in shown["arms"]]


def test_building_finds_roads_that_differ_in_rounding_only() -> None:
    from ablate.model import compare

    base = ModelConfig(d_model=64, n_heads=4, n_layers=2, rope=True, max_sequence_length=64)
    one = compare.build(base, 64)
    for road in ({"attention_backend": "math"}, {"rope_full_precision": False}):
        assert compare.compare(one, compare.build(base.replace(**road), 64)).what is None
    assert compare.compare(one, compare.build(base.replace(rope_theta=9000), 64)).what == "outputs"


OWN = "tests.model.own_modules"


@pytest.mark.parametrize(
    ("field", "name"),
    [("layer_norm_type", "Rolled"), ("activation_type", "Centred"), ("position", "Mirrored")],
)
def test_an_arm_that_reads_later_tokens_is_named(field, name, checked) -> None:
    levels = {"sane": "norm=rms", "leaky": f"model.{field}={OWN}:{name}"}
    with pytest.raises(PlanError) as caught:
        checked(factors={"x": levels})
    message = str(caught.value)
    assert message.startswith(f"Arm x-leaky (model.{field}={OWN}:{name}) reads later tokens: ")
    assert "the outputs at position " in message
    assert "train.check_causality=false" in message
    assert "\n" not in message


def test_a_leak_that_is_allowed_is_told(write_sweep, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    leaky = [f"model.layer_norm_type={OWN}:Rolled", "train.check_causality=false"]
    causal = f"model.layer_norm_type={OWN}:Shifted"
    sweep = write_sweep(factors={"norm": {"leaky": leaky, "causal": causal}})
    words = [f"sweep={sweep}", "--check"]
    assert plan.main([*words, "--json"]) == 0
    told = {c["arm"]: c["not_causal"] for c in json.loads(capsys.readouterr().out)["checks"]}
    assert told["baseline"] is None
    assert told["norm-causal"] is None
    assert told["norm-leaky"].startswith("reads later tokens: ")
    assert plan.main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "norm-leaky: it is not known to be causal (reads later tokens: with other" in shown


def test_to_allow_a_leak_is_no_change(checked) -> None:
    causal = f"model.layer_norm_type={OWN}:Shifted"
    with pytest.raises(PlanError, match=r"Arm x-allowed changes train\.check_causality, but"):
        checked(baseline=[causal], factors={"x": {"allowed": "train.check_causality=false"}})


def test_nothing_that_is_ours_reads_what_the_setting_allows(checked) -> None:
    with pytest.raises(AblateError, match=r"train\.check_causality.*no module of the model is"):
        checked(factors={"x": {"allowed": ["norm=rms", "train.check_causality=false"]}})
