"""Standard deviations by the published table, and tensors shared between arms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ablate.model import ModelConfig, OLMo

D, HEADS, LAYERS, ROWS, S = 64, 4, 3, 512, 0.03
BASE: dict[str, Any] = {
    "d_model": D, "n_heads": HEADS, "n_layers": LAYERS, "max_sequence_length": 256,
    "vocab_size": ROWS, "embedding_size": ROWS, "eos_token_id": 0, "pad_token_id": 0,
    "init_std": S, "weight_tying": False, "activation_type": "swiglu", "mlp_ratio": 8,
}  # fmt: skip
H = 4 * D  # width after the gate
CUT3 = 0.98658  # standard deviation of a normal truncated at 3


def built(seed: int = 0, **fields: Any) -> OLMo:
    return OLMo(ModelConfig(**{**BASE, **fields}), seed=seed)


EXPECTED = {
    "normal": {"wte": S, "wpe": S, "att_proj": S, "ff_proj": S, "head": S,
               "attn_out": [S] * 3, "ff_out": [S] * 3},
    "mitchell": {"wte": D**-0.5, "wpe": D**-0.5, "att_proj": D**-0.5, "ff_proj": D**-0.5,
                 "head": D**-0.5,
                 "attn_out": [(2 * D * (i + 1)) ** -0.5 for i in range(3)],
                 "ff_out": [(2 * H * (i + 1)) ** -0.5 for i in range(3)]},
    "full_megatron": {"wte": S, "wpe": S, "att_proj": S, "ff_proj": S, "head": D**-0.5,
                      "attn_out": [S / math.sqrt(2 * LAYERS)] * 3,
                      "ff_out": [S / math.sqrt(2 * LAYERS)] * 3},
}  # fmt: skip
CUTOFF = {"normal": 1.0, "mitchell": CUT3, "full_megatron": CUT3}


@pytest.mark.parametrize("name", EXPECTED)
def test_standard_deviations_follow_the_table(name: str) -> None:
    state = built(init_fn=name).state_dict()
    table, cut = EXPECTED[name], CUTOFF[name]

    def check(key: str, expected: float) -> None:
        value = state[f"transformer.{key}.weight"]
        # Four standard errors of a standard deviation.
        tolerance = 4 / math.sqrt(2 * value.numel())
        assert value.std().item() == pytest.approx(expected * cut, rel=tolerance), key
        assert abs(value.mean().item()) < 5 * expected / math.sqrt(value.numel()), key

    check("wte", table["wte"])
    check("wpe", table["wpe"])
    check("ff_out", table["head"])
    for i in range(LAYERS):
        check(f"blocks.{i}.att_proj", table["att_proj"])
        check(f"blocks.{i}.ff_proj", table["ff_proj"])
        check(f"blocks.{i}.attn_out", table["attn_out"][i])
        check(f"blocks.{i}.ff_out", table["ff_out"][i])


def test_biases_are_zero_and_norms_are_one() -> None:
    for name, value in built().state_dict().items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif "norm" in name or "ln_f" in name:
            assert (value == 1).all(), name


@pytest.mark.parametrize("name", ["normal", "mitchell", "full_megatron"])
def test_a_cutoff_truncates(name: str) -> None:
    weight = built(init_fn=name, init_cutoff_factor=2.0).state_dict()["transformer.wte.weight"]
    limit = 2 * EXPECTED[name]["wte"]
    assert weight.abs().max() <= limit * (1 + 1e-6)
    assert weight.abs().max() > 0.9 * limit


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rope and alibi": ({"rope": True}, {"alibi": True}),
    "with and without QK-norm": ({}, {"attention_layer_norm": True}),
    "tied and untied": ({"weight_tying": True}, {"weight_tying": False}),
    "pre and post norm": ({}, {"norm_after": True}),
    "bias and none": ({}, {"include_bias": False}),
    "two and three layers": ({"n_layers": 2}, {"n_layers": 3}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_arms_share_each_tensor_that_they_have_in_common(name: str) -> None:
    one, other = (built(**fields).state_dict() for fields in PAIRS[name])
    common = one.keys() & other.keys()
    assert len(common) > 10
    for key in common:
        assert torch.equal(one[key], other[key]), key


def test_another_seed_is_another_model() -> None:
    one, other = built(seed=0).state_dict(), built(seed=1).state_dict()
    key = "transformer.blocks.0.att_proj.weight"
    assert not torch.equal(one[key], other[key])
    assert abs(torch.corrcoef(torch.stack((one[key].flatten(), other[key].flatten())))[0, 1]) < 0.05


def test_two_tensors_of_one_model_are_not_alike() -> None:
    state = built().state_dict()
    one, other = (state[f"transformer.blocks.{i}.att_proj.weight"] for i in (0, 1))
    assert abs(torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1]) < 0.05


def test_from_meta_the_weights_are_the_same() -> None:
    direct = built(seed=3).state_dict()
    late = built(init_device="meta")
    late.to_empty(device="cpu")
    late.reset_parameters(seed=3)
    for key, value in late.state_dict().items():
        assert torch.equal(value, direct[key]), key
