"""Recomputing activations changes no gradient; wrap policies pick the modules they name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config.schema.parallel import STRATEGIES as WRAPS
from ablate.errors import ConfigError
from ablate.model.block import Block
from ablate.model.checkpointing import STRATEGIES
from tests.model.models import OLMO2, tiny, tokens

RECOMPUTED = {
    "whole_layer": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "one_in_two": [0, 2, 4, 6, 8],
    "one_in_three": [0, 3, 6],
    "one_in_four": [0, 4, 8],
    "one_in_eight": [0, 8],
    "two_in_three": [1, 2, 4, 5, 7, 8],
    "three_in_four": [1, 2, 3, 5, 6, 7],
    "fine_grained": [],
}


def gradients(fields: dict[str, Any], strategy: str | None) -> list[torch.Tensor]:
    model = tiny(**fields).train()
    model.set_activation_checkpointing(strategy)
    torch.manual_seed(0)
    model(tokens()).logits.logsumexp(-1).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "fields",
    [
        OLMO2,
        {"block_type": "llama", "n_layers": 4, "block_group_size": 2},
        {"attention_dropout": 0.3, "residual_dropout": 0.3},
    ],
    ids=["OLMo 2", "llama in groups", "dropout"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_identical(strategy: str, fields: dict[str, Any]) -> None:
    for got, want in zip(gradients(fields, strategy), gradients(fields, None), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("strategy", RECOMPUTED)
@pytest.mark.parametrize("group", [1, 3])
def test_the_blocks_that_are_recomputed(strategy: str, group: int) -> None:
    model = tiny(n_layers=9, block_group_size=group)
    passes = [0] * 9
    for block in model.blocks:
        block.register_forward_pre_hook(
            lambda b, _: passes.__setitem__(b.layer, passes[b.layer] + 1)
        )
    model.set_activation_checkpointing(strategy)
    model(tokens(1, 4)).logits.sum().backward()
    assert [layer for layer, count in enumerate(passes) if count == 2] == RECOMPUTED[strategy]


def test_fine_grained_recomputes_inside_the_block() -> None:
    model = tiny(n_layers=1)
    calls = {"attn_norm": 0, "ff_norm": 0, "act": 0, "attn_out": 0, "att_proj": 0, "ff_proj": 0}
    for name in calls:
        module = getattr(model.blocks[0], name)
        module.register_forward_pre_hook(lambda *_, n=name: calls.__setitem__(n, calls[n] + 1))
    model.set_activation_checkpointing("fine_grained")
    model(tokens(1, 4)).logits.sum().backward()
    assert calls == {
        "attn_norm": 2,
        "ff_norm": 2,
        "act": 2,
        "attn_out": 2,
        "att_proj": 1,
        "ff_proj": 1,
    }


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(ConfigError, match="whole_layer"):
        tiny().set_activation_checkpointing("whole_layers")
    with pytest.raises(ConfigError, match="by_block"):
        tiny().fsdp_wrap_policy("by_blocks")
    with pytest.raises(ConfigError, match="block_group_size"):
        tiny().fsdp_wrap_policy("by_block_group")


@pytest.mark.parametrize(
    ("strategy", "blocks", "others"),
    [
        ("by_block", [0, 1, 2, 3, 4, 5], []),
        ("by_block_and_size", [0, 1, 2, 3, 4, 5], ["wte", "ff_out"]),
        ("one_in_two", [0, 2, 4], []),
        ("one_in_three", [0, 3], []),
        ("one_in_four", [0, 4], []),
        ("one_in_five", [0, 5], []),
    ],
)
def test_what_fsdp_wraps(strategy: str, blocks: list[int], others: list[str]) -> None:
    model = tiny(n_layers=6, weight_tying=False)
    policy = model.fsdp_wrap_policy(strategy)
    assert policy is not None
    assert policy(module=model, recurse=True, nonwrapped_numel=0)
    wrapped = [
        m for m in model.modules() if policy(module=m, recurse=False, nonwrapped_numel=10**9)
    ]
    assert [m.layer for m in wrapped if isinstance(m, Block)] == blocks
    rest = [m for m in wrapped if not isinstance(m, Block)]
    assert all(a is model.transformer[b] for a, b in zip(rest, others, strict=True))


@pytest.mark.parametrize("strategy", ["by_block_group", "by_block_group_and_size"])
def test_fsdp_wraps_groups(strategy: str) -> None:
    model = tiny(n_layers=6, block_group_size=3)
    policy = model.fsdp_wrap_policy(strategy)
    assert policy is not None
    wrapped = [m for m in model.modules() if policy(module=m, recurse=False, nonwrapped_numel=1)]
    assert len(wrapped) == 2 + ("size" in strategy)  # the embedding; the head is tied


def test_every_wrap_strategy_gives_a_policy() -> None:
    model = tiny(n_layers=4, block_group_size=2)
    assert all(callable(model.fsdp_wrap_policy(strategy)) for strategy in WRAPS)
    assert model.fsdp_wrap_policy(None) is None
