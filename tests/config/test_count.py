"""The formulas count what is built, for configurations drawn over all fields."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ablate.errors import ConfigError
from ablate.model import OLMo, count, names
from ablate.model.config import ModelConfig


def draw_config(draw: random.Random) -> ModelConfig:
    """A legal configuration; illegal draws are drawn again."""
    while True:
        heads = draw.choice([1, 2, 4])
        position = draw.choice([None, *names.POSITIONS])
        fields: dict[str, Any] = {
            "d_model": heads * draw.choice([4, 6, 8]),
            "n_heads": heads,
            "n_kv_heads": draw.choice([None, 1, 2]),
            "multi_query_attention": draw.choice([None, None, True]),
            "n_layers": draw.choice([1, 2, 4]),
            "block_group_size": draw.choice([1, 1, 2]),
            "mlp_ratio": draw.choice([2, 4, 5]),
            "mlp_hidden_size": draw.choice([None, 20, 34]),
            "max_sequence_length": draw.choice([8, 12]),
            "vocab_size": draw.choice([11, 20]),
            "embedding_size": draw.choice([None, 0, 32]),
            "eos_token_id": 0,
            "pad_token_id": 0,
            "activation_type": draw.choice(names.ACTIVATIONS),
            "block_type": draw.choice(names.BLOCKS),
            "layer_norm_type": draw.choice(names.NORMS),
            "position": position,
            "relative_num_buckets": draw.choice([8, 32]),
            "bias_for_layer_norm": draw.choice([None, True, False]),
            "sliding_window": draw.choice([None, 5]),
            "sliding_window_pattern": draw.choice([None, [3, -1]]),
            "rope": position is None and draw.random() < 0.5,
            "norm_segments": draw.choice([None, None, 2]),
            "layer_norm_scale": draw.random() < 0.7,
            "width_taper": draw.choice([1.0, 1.0, 0.5, 2.0]),
            "width_match": "none",
        }
        for flag in (
            "alibi", "attention_layer_norm", "attention_layer_norm_per_head", "norm_after",
            "peri_norm", "attention_layer_norm_with_affine", "embedding_layer_norm",
            "layer_norm_with_affine", "include_bias", "weight_tying",
        ):  # fmt: skip
            fields[flag] = draw.random() < 0.5
        try:
            return ModelConfig(**fields)
        except ConfigError:
            continue


def test_parameters_of_random_configurations_are_those_built() -> None:
    draw = random.Random(0)
    for _ in range(120):
        config = draw_config(draw)
        model = OLMo(config.replace(init_device="meta"))
        for everything in (True, False):
            counted = count.parameters(config, everything)
            assert counted == model.num_params(everything), config


def test_flops_are_those_that_torch_counts() -> None:
    """Of all matrix products of a training step, with plain attention, which skips nothing."""
    draw = random.Random(1)
    length = 8
    for _ in range(10):
        config = draw_config(draw).replace(
            attention_backend="math", sliding_window=None, sliding_window_pattern=None,
            attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0,
        )  # fmt: skip
        model = OLMo(config)
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, length, dtype=torch.long)).logits.sum().backward()
        assert counter.get_total_flops() == length * count.flops_per_token(config, length), config


def test_windows_lower_the_flops_and_never_above_the_sequence() -> None:
    full = ModelConfig(n_layers=4)
    d = full.d_model
    window = full.replace(sliding_window=100)
    pattern = full.replace(sliding_window_pattern=[100, -1])
    whole = count.flops_per_token(full, 1000)
    assert whole - count.flops_per_token(window, 1000) == 12 * d * 4 * 900
    assert whole - count.flops_per_token(pattern, 1000) == 12 * d * 2 * 900
    assert count.flops_per_token(window, 50) == count.flops_per_token(full, 50)


class WideNorm(nn.Module):
    """A user's own: three vectors where ours has two."""

    def __init__(self, size: int, *, eps: float, affine: bool, bias: bool) -> None:
        super().__init__()
        self.three = nn.Parameter(torch.ones(3, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.three.sum(0)


def test_a_variant_of_the_users_own_is_counted_by_building_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys
    import types

    module = types.ModuleType("users_package")
    module.WideNorm = WideNorm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_package", module)
    plain = ModelConfig(d_model=16, n_heads=2, n_layers=2, layer_norm_with_affine=False)
    own = plain.replace(layer_norm_type="users_package:WideNorm")
    assert count.parameters(own) - count.parameters(plain) == 5 * 3 * 16
    assert count.flops_per_token(own, 8) == count.flops_per_token(plain, 8)
    with pytest.raises(ConfigError, match="layer_norm_type"):
        count.parameters(plain.replace(layer_norm_type="nowhere:Norm"))
