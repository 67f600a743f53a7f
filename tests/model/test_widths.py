"""Layers of unequal width: a narrow bottom and a wide top, matched to the uniform model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config.compose import Composer
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo, count
from ablate.model.widths import is_uniform, layer_configs, resolved
from ablate.plan import effective_fingerprint, resolve
from tests.model.models import BASE, OLMO2, difference, tokens

FOUR = {**BASE, "n_layers": 4, "d_model": 64}
COMPOSER = Composer()


def composed(*overrides: str) -> ModelConfig:
    return ModelConfig.from_mapping(COMPOSER.compose(list(overrides))["model"])


@pytest.mark.parametrize("family", [{}, OLMO2])
def test_equal_widths_are_the_uniform_model_bit_for_bit(family: dict[str, Any]) -> None:
    uniform = OLMo(ModelConfig(**{**FOUR, **family}), seed=1).eval()
    for fields in ({"layer_widths": [64] * 4}, {"width_taper": 1.0, "width_segments": 2}):
        equal = OLMo(ModelConfig(**{**FOUR, **family, **fields}), seed=1).eval()
        ours, theirs = equal.state_dict(), uniform.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert torch.equal(equal(tokens()).logits, uniform(tokens()).logits)


@pytest.mark.parametrize("family", ["gpt2", "olmo2"])
@pytest.mark.parametrize("size", ["tiny", "1m", "60m"])
@pytest.mark.parametrize("option", ["tapered", "tapered_reverse", "tapered_flops"])
def test_a_tapered_model_has_the_size_of_the_uniform_one(family, size, option) -> None:
    base = [f"model={family}", f"size={size}"]
    uniform, tapered = composed(*base), composed(*base, f"width={option}")
    widths = [layer.d_model for layer in layer_configs(tapered)]
    assert widths == sorted(widths, reverse=option == "tapered_reverse")
    ratio = widths[0] / widths[-1]
    assert ratio == pytest.approx(2.0 if option == "tapered_reverse" else 0.5, rel=0.1)

    def cost(c: ModelConfig) -> int:
        if option == "tapered_flops":
            return count.flops_per_token(c, c.max_sequence_length)
        return count.parameters(c)

    assert abs(cost(tapered) / cost(uniform) - 1) <= 0.01
    meta = OLMo(tapered.replace(init_device="meta"))
    assert meta.num_params() == count.parameters(tapered)


@pytest.mark.parametrize("tied", [True, False])
def test_projections_stand_where_the_width_changes_and_nowhere_else(tied: bool) -> None:
    config = ModelConfig(**{**FOUR, "layer_widths": [32, 32, 64, 48], "weight_tying": tied})
    names = dict(OLMo(config).named_parameters())
    found = {n: tuple(p.shape) for n, p in names.items() if "width" in n}
    expected = {
        "transformer.blocks.2.width_proj.weight": (64, 32),
        "transformer.blocks.3.width_proj.weight": (48, 64),
    }
    assert found == (expected | {"transformer.width_out.weight": (32, 48)} if tied else expected)
    assert names["transformer.wte.weight"].shape == (64, 32)
    assert names["transformer.ln_f.weight"].shape == (32 if tied else 48,)
    assert names["transformer.blocks.3.ff_proj.weight"].shape == (4 * 48, 48)


KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "olmo2": OLMO2,
    "alibi": {"alibi": True},
    "relative": {"position": "relative"},
    "hybrid": {"position": "hybrid"},
    "gqa, per head, window": {
        **OLMO2, "n_kv_heads": 2, "attention_layer_norm_per_head": True, "sliding_window": 4,
    },
    "llama": {"block_type": "llama", "rope": True},
    "groups, noise, segments": {
        "block_group_size": 2, "norm_noise": 0.1, "norm_segments": 4, "scale_logits": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taper", [0.5, 2.0])
def test_it_composes_is_causal_and_trains_every_parameter(kind: str, taper: float) -> None:
    config = ModelConfig(**{**FOUR, **KINDS[kind], "width_taper": taper})
    model = OLMo(config)
    assert model.num_params() == count.parameters(config)
    assert model.num_params(False) == count.parameters(config, False)
    ids = tokens()
    logits = model.eval()(ids).logits
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 40
    other = model(changed).logits
    assert torch.equal(other[:, :9], logits[:, :9])
    assert not torch.equal(other[:, 9:], logits[:, 9:])
    model.train()(ids).logits.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_a_cache_of_unequal_heads_gives_the_logits_of_the_whole_sequence() -> None:
    model = OLMo(ModelConfig(**{**FOUR, **OLMO2, "width_taper": 0.5})).eval()
    ids = tokens()
    whole, cached, past = model(ids).logits, [], None
    for i in range(ids.shape[1]):
        out = model(ids[:, i : i + 1], past_key_values=past, use_cache=True)
        past = out.attn_key_values
        cached.append(out.logits)
    assert difference(torch.cat(cached, dim=1), whole) < 1e-5


@pytest.mark.parametrize("init", ["normal", "mitchell", "llama"])
def test_a_projection_keeps_the_size_of_the_residual_stream(init: str) -> None:
    model = OLMo(ModelConfig(**{**FOUR, "layer_widths": [32, 32, 128, 128], "init_fn": init}))
    projection = model.blocks[2].width_proj
    assert projection is not None
    x = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    ratio = projection(x).square().mean() / x.square().mean()
    assert float(ratio.detach()) == pytest.approx(1.0, abs=0.2)


def test_a_foundation_is_narrow_and_all_above_it_is_wide() -> None:
    config = ModelConfig(**FOUR, width_taper=0.5, foundation_layers=1, width_match="none")
    widths = [layer.d_model for layer in layer_configs(config)]
    assert len(set(widths[1:])) == 1
    assert widths[0] / widths[1] == pytest.approx(0.5, rel=0.15)
    noisy = config.replace(norm_noise=0.1)
    assert resolved(noisy).foundation_layers == 1
    assert resolved(config).foundation_layers is None


def test_what_is_uniform_in_other_words_is_the_same_arm() -> None:
    def arm(**model: Any) -> str:
        return effective_fingerprint(resolve({"model": {**FOUR, **model}}))

    assert arm() == arm(layer_widths=[64] * 4) == arm(width_segments=2) == arm(width_match="none")
    tapered = ModelConfig(**FOUR, width_taper=0.5)
    told = resolved(tapered)
    assert not is_uniform(tapered)
    assert arm(width_taper=0.5) == arm(
        layer_widths=told.layer_widths, mlp_hidden_size=told.mlp_hidden_size
    )
    assert len({arm(), arm(width_taper=0.5), arm(width_taper=2.0)}) == 3


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"width_taper": 0.0}, "width_taper"),
        ({"width_taper": -1.0}, "width_taper"),
        ({"width_taper": 0.01}, "width_taper.*finds no widths"),
        ({"width_taper": 0.5, "n_layers": 1}, "width_taper.*two layers"),
        ({"width_segments": 1}, "width_segments"),
        ({"width_match": "wallclock"}, "width_match"),
        ({"layer_widths": [64, 64]}, "layer_widths.*n_layers is 4"),
        ({"layer_widths": [64, 64, 64, 62]}, r"layer_widths\[3\]"),
        ({"layer_widths": [64, 64, 64, 60], "rope": True}, r"layer_widths\[3\].*2 x"),
        ({"layer_widths": [32, 64, 64, 64], "width_taper": 0.5}, "layer_widths.*contradicts"),
        ({"layer_widths": [32, 64, 64, 36], "norm_segments": 8}, r"layer_widths\[3\].*norm_segm"),
        ({"width_taper": 0.5, "foundation_layers": 0}, "foundation_layers"),
        ({"width_taper": 0.5, "foundation_layers": 4}, "foundation_layers"),
        ({"width_taper": 0.5, "position": "my.own:Position"}, "width_taper.*of one's own"),
    ],
)
def test_nonsense_is_refused_by_name(fields, named) -> None:
    with pytest.raises(ConfigError, match=f"model.{named}"):
        ModelConfig(**{**FOUR, **fields})
