"""State dicts: upstream's names, wrappers' prefixes, groups, and the norm of older blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.model import ModelConfig, OLMo
from ablate.model.compat import clean_name
from tests.model.models import BASE, OLMO2, tiny, tokens, upstream


@pytest.mark.parametrize(
    "fields",
    [
        {},
        OLMO2,
        {"block_type": "llama"},
        {"block_group_size": 2},
        {"embedding_layer_norm": True, "layer_norm_with_affine": False},
    ],
    ids=str,
)
def test_names_and_order_are_upstreams(fields: dict[str, Any]) -> None:
    model = tiny(**fields)
    assert list(model.state_dict()) == list(upstream(model).state_dict())


@pytest.mark.parametrize(("held", "wanted"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_blocks_are_regrouped(held: int, wanted: int) -> None:
    old, new = (
        tiny(seed, n_layers=4, block_group_size=size) for seed, size in ((0, held), (1, wanted))
    )
    state, renamed = new.make_state_dict_compatible(old.state_dict())
    new.load_state_dict(state)
    assert torch.equal(new(tokens()).logits, old(tokens()).logits)
    assert set(renamed) == set(old.state_dict())
    theirs, their_names = upstream(new)._make_state_dict_compatible(old.state_dict())
    assert state.keys() == theirs.keys()
    assert renamed == their_names


def test_a_shared_norm_is_given_to_both() -> None:
    model = tiny()
    state = model.state_dict()
    old = {k.replace("attn_norm", "norm"): v for k, v in state.items() if "ff_norm" not in k}
    new, renamed = model.make_state_dict_compatible(old)
    assert new.keys() == state.keys()
    assert torch.equal(
        new["transformer.blocks.1.ff_norm.weight"], state["transformer.blocks.1.attn_norm.weight"]
    )
    assert renamed["transformer.blocks.0.norm.weight"] == {
        "transformer.blocks.0.attn_norm.weight",
        "transformer.blocks.0.ff_norm.weight",
    }


def test_wrappers_leave_no_trace() -> None:
    model = tiny()
    wrapped = {
        f"_fsdp_wrapped_module.{k.replace('blocks.0.', 'blocks.0._fsdp_wrapped_module.')}": v
        for k, v in model.state_dict().items()
    }
    new, _ = model.make_state_dict_compatible(wrapped)
    assert new.keys() == model.state_dict().keys()
    assert clean_name("module._orig_mod.transformer.wte.weight") == "transformer.wte.weight"


def test_nothing_but_parameters_is_saved() -> None:
    model = OLMo(ModelConfig(**BASE, rope=True))
    model(tokens())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
