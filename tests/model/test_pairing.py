"""Two arms share, bit for bit, each tensor that they have in common."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from ablate.model import ModelConfig, OLMo
from tests.model.models import BASE, OLMO2, tiny, tokens


def build(seed: int = 0, **fields: Any) -> OLMo:
    return OLMo(ModelConfig(**{**BASE, **fields}), seed=seed)


PAIRS = {
    "rope and alibi": ({"rope": True}, {"alibi": True}, set()),
    "learned and relative": ({}, {"position": "relative"}, {"transformer.wpe.weight"}),
    "QK-norm off and on": (OLMO2 | {"attention_layer_norm": False}, OLMO2, set()),
    "untied and tied": (
        {"weight_tying": False},
        {},
        {"transformer.ff_out.weight", "transformer.ff_out.bias"},
    ),
    "biases and none": ({"include_bias": True}, {"include_bias": False}, None),
    "norm before and after": (OLMO2, OLMO2 | {"norm_after": False}, set()),
    "sublayers with one norm and two": ({}, {"peri_norm": True}, set()),
    "groups": ({}, {"rope": True, "n_layers": 4}, None),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_arms_share_what_they_have_in_common(pair: str) -> None:
    first, second, alone = PAIRS[pair]
    a, b = build(**first).state_dict(), build(**second).state_dict()
    common = [name for name in a if name in b and a[name].shape == b[name].shape]
    assert len(common) >= 9
    assert all(torch.equal(a[name], b[name]) for name in common)
    if alone is not None:
        assert set(a) - set(common) == alone


def test_block_groups_hold_the_tensors_of_plain_blocks() -> None:
    plain, grouped = build(n_layers=4), build(n_layers=4, block_group_size=2)
    renamed, _ = plain.make_state_dict_compatible(grouped.state_dict())
    assert renamed.keys() == plain.state_dict().keys()
    assert all(torch.equal(value, renamed[name]) for name, value in plain.state_dict().items())


def test_a_standard_deviation_scales_the_same_draws() -> None:
    one, two = build(init_std=0.02).state_dict(), build(init_std=0.04).state_dict()
    name = "transformer.blocks.1.att_proj.weight"
    torch.testing.assert_close(2 * one[name], two[name])


def test_truncation_redraws_only_what_lies_outside() -> None:
    whole, cut = build().state_dict(), build(init_cutoff_factor=2.0).state_dict()
    a, b = (s["transformer.blocks.0.ff_proj.weight"] for s in (whole, cut))
    inside = a.abs() <= 2 * 0.02
    assert 0.93 < inside.float().mean() < 0.97
    assert torch.equal(a[inside], b[inside])
    assert b.abs().max() <= 2 * 0.02


def test_seeds_and_names_give_different_draws() -> None:
    one, two = build(0).state_dict(), build(1).state_dict()
    assert not torch.equal(one["transformer.wte.weight"], two["transformer.wte.weight"])
    first, second = (one[f"transformer.blocks.{i}.att_proj.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_the_default_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    two = build()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    "fields", [{}, OLMO2, {"embedding_layer_norm": True, "block_type": "llama"}]
)
def test_a_model_built_on_meta_gets_the_same_weights(fields: dict[str, Any]) -> None:
    direct = build(3, **fields)
    late = build(3, **fields, init_device="meta")
    assert all(parameter.is_meta for parameter in late.parameters())
    late.to_empty(device="cpu")
    for parameter in late.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    late.reset_parameters(3)
    for (name, p), q in zip(direct.named_parameters(), late.parameters(), strict=True):
        assert torch.equal(p, q), name
    assert torch.equal(direct.eval()(tokens()).logits, late.eval()(tokens()).logits)


def test_process_wide_attention_flags_stay_as_they_are() -> None:
    cuda = torch.backends.cuda
    flags = cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled
    before = [flag() for flag in flags]
    build(**OLMO2)(tokens())
    assert [flag() for flag in flags] == before


def test_a_copied_model_computes_the_same() -> None:
    model = tiny(**OLMO2)
    want = model(tokens()).logits
    assert torch.equal(copy.deepcopy(model)(tokens()).logits, want)
