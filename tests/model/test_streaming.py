"""A bounded cache: exact where nothing is let go, within its budget, right positions after it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ablate.config.schema import CacheConfig
from ablate.config.schema.cache import POLICIES
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.model.eviction import KEEPERS, Held
from ablate.model.streaming import Stream
from ablate.train.long_context import measure_cache

SMALL = {
    "d_model": 32, "n_heads": 4, "n_layers": 2, "max_sequence_length": 96, "vocab_size": 64,
    "embedding_size": None, "eos_token_id": 0, "pad_token_id": 0, "attention_dropout": 0.0,
    "residual_dropout": 0.0, "embedding_dropout": 0.0, "init_std": 0.07,
}  # fmt: skip
KINDS = {
    "learned": {},
    "olmo2": {"rope": True, "layer_norm_type": "rms", "norm_after": True, "include_bias": False,
              "attention_layer_norm": True},
    "gqa": {"rope": True, "n_kv_heads": 2},
    "window": {"rope": True, "sliding_window": 17},
    "llama": {"rope": True, "block_type": "llama"},
    "sinusoidal": {"position": "sinusoidal", "embedding_layer_norm": True},
    "sinusoidal in bfloat16": {"position": "sinusoidal"},
    "hybrid in bfloat16": {"position": "hybrid"},
    "olmo2 in bfloat16": {"rope": True, "layer_norm_type": "rms", "norm_after": True,
                          "attention_layer_norm": True},
}  # fmt: skip
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-6}
"""Of a sum in another order, by the type of weights and activations; relative to the largest."""


def model(kind: str, **fields: float) -> OLMo:
    made = OLMo(ModelConfig(**SMALL | KINDS[kind] | fields)).eval()  # type: ignore[arg-type]
    return made.bfloat16() if "bfloat16" in kind else made


def ids(length: int = 80) -> Tensor:
    return torch.randint(0, 64, (1, length), generator=torch.Generator().manual_seed(0))


def policy(name: str, **fields: float) -> CacheConfig:
    return CacheConfig(
        **{"name": name, "budget": 24, "recent": 8, "sinks": 2, "chunk": 4, **fields}
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("std", [0.07, 0.2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", POLICIES)
def test_with_an_infinite_budget_it_is_the_plain_model(name: str, kind: str, std: float) -> None:
    plain = model(kind, init_std=std)
    stream = Stream(plain, policy(name, budget=10_000))
    found = torch.cat([stream.read(part) for part in ids().split(7, dim=1)], dim=1)
    with torch.no_grad():
        expected = plain(ids()).logits
    assert found.dtype == expected.dtype
    assert (found - expected).abs().max() <= ROUNDING[found.dtype] * expected.abs().max()


@pytest.mark.parametrize("name", [p for p in POLICIES if p != "full"])
def test_the_budget_holds_and_what_is_protected_stays(name: str) -> None:
    stream = Stream(model("olmo2"), policy(name))
    for part in ids().split(4, dim=1):
        stream.read(part)
        for layer in stream.layers:
            assert len(layer.positions) <= 24
            assert layer.keys is not None
            assert layer.keys.shape[2] == len(layer.positions)
            if name in ("heavy_hitter", "dynamic"):
                protected = {0, 1, *range(max(stream.position - 8, 0), stream.position)}
                assert protected & set(range(stream.position)) <= set(layer.positions.tolist())
    assert stream.bytes == 2 * 2 * 24 * 32 * 4, "layers x (keys, values) x tokens x width x float32"


def test_keys_keep_their_positions_after_an_eviction() -> None:
    """A window of evictions is a window of the mask: the same logits, by the plain path."""
    cut = Stream(model("olmo2"), policy("window", budget=16, chunk=1))
    found = torch.cat([cut.read(part) for part in ids().split(1, dim=1)], dim=1)
    masked = OLMo(ModelConfig(**SMALL, **KINDS["olmo2"], sliding_window=17)).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        expected = masked(ids()).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def held(mass: list[float], used: list[int], new: int = 1) -> Held:
    n = len(mass)
    return Held(
        positions=torch.arange(n), mass=torch.tensor(mass), used=torch.tensor(used), new=new
    )


def test_each_policy_lets_go_what_it_says() -> None:
    case = held([0.9, 0.1, 0.5, 0.4, 0.3], [4, 1, 2, 0, 4])
    gone = {}
    for name, keep in KEEPERS.items():
        config = CacheConfig(name=name, budget=4, recent=1, sinks=0, mixture=0.9)  # type: ignore[arg-type]
        gone[name] = set(range(5)) - set(keep(case, config).tolist())
    assert gone["full"] == set()
    assert gone["window"] == {0}
    assert gone["lru"] == {3}
    assert gone["heavy_hitter"] == {1}
    assert gone["dynamic"] == {0}, "nine tenths of the score are recency"
    even = CacheConfig(name="dynamic", budget=4, recent=1, sinks=0, mixture=0.5)
    assert 1 not in KEEPERS["dynamic"](case, even), "0 is older, and has nine times the attention"
    # 3 was used least recently, and has more attention than the newcomer, which stays out.
    assert gone["dynamic_as_published"] == {4}


def test_the_hit_rate_is_the_share_of_attention_that_is_still_seen() -> None:
    whole = measure_cache(model("olmo2"), ids(), policy("full"))
    assert whole["cache/hit_rate"] == pytest.approx(1.0)
    assert whole["cache/perplexity"] == pytest.approx(whole["cache/perplexity_full"], rel=1e-6)
    row = measure_cache(model("olmo2"), ids(), policy("window"))
    assert 0.1 < row["cache/hit_rate"] < 1
    assert row["cache/bytes"] < whole["cache/bytes"] == row["cache/bytes_full"]
    assert math.isfinite(row["cache/perplexity"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "bfloat16" in kind])
def test_it_is_measured_in_pure_bfloat16(kind: str) -> None:
    row = measure_cache(model(kind), ids(), policy("dynamic"))
    assert math.isfinite(row["cache/perplexity"])
    assert 0.1 < row["cache/hit_rate"] < 1
    assert row["cache/bytes"] < row["cache/bytes_full"]


def test_what_a_cache_with_gaps_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match="evictions shift"):
        Stream(OLMo(ModelConfig(**SMALL, alibi=True)), policy("lru"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="leaves nothing beside"):
        CacheConfig(name="dynamic", budget=36)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        CacheConfig(mixture=1.5)
