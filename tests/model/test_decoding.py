"""Generation with a bounded or a preheated cache: the plain tokens where nothing is let go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ablate.config.schema import CacheConfig
from ablate.config.schema.cache import POLICIES
from ablate.errors import ConfigError
from ablate.model.preheat import Preheated
from ablate.model.sampling import Multinomial, TopK
from ablate.model.streaming import Stream
from tests.model.models import OLMO2, tiny, tokens

STEPS = 12
KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "olmo2": OLMO2,
    "grouped": {"rope": True, "n_kv_heads": 2},
}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"beam_size": 3, "per_node_beam_size": 2},
    "min_steps": {"beam_size": 2, "min_steps": STEPS},
    "sampling": {"sampler": Multinomial},
    "top-k": {"sampler": lambda generator: TopK(k=5, generator=generator), "beam_size": 2},
}


def policy(name: str, budget: int = 1000, **fields: Any) -> CacheConfig:
    return CacheConfig(name=name, budget=budget, recent=2, sinks=1, chunk=3, **fields)  # type: ignore[arg-type]


def made(model: Any, way: dict[str, Any], cache: Any = None) -> Any:
    options = dict(way)
    if "sampler" in options:
        options["sampler"] = options["sampler"](generator=torch.Generator().manual_seed(4))
    return model.generate(tokens(3, 7), max_steps=STEPS, cache=cache, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_with_room_for_all_the_tokens_are_the_plain_ones(way: str, kind: str) -> None:
    model = tiny(spread=0.1, **KINDS[kind])
    plain = made(model, WAYS[way])
    prompts = tokens(3, 7).tolist()
    known = np.array([prompts[0][:3], prompts[2][:3]])
    longer = np.array([prompts[2][:5]])
    for cache in (*map(policy, POLICIES), Preheated(model, [known, longer])):
        found = made(model, WAYS[way], cache)
        assert torch.equal(found.token_ids, plain.token_ids)
        torch.testing.assert_close(found.scores, plain.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [p for p in POLICIES if p != "full"])
def test_a_bounded_cache_stays_within_its_budget_row_by_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row, and each beam, as the same prompt alone has it; and no layer holds more."""
    model, most = tiny(spread=0.1, **OLMO2), []
    read = Stream.read

    def watched(self: Stream, *given: Any, **options: Any) -> Any:
        logits = read(self, *given, **options)
        most.append(max(len(layer.positions) for layer in self.layers))
        return logits

    monkeypatch.setattr(Stream, "read", watched)
    config = policy(name, budget=6)
    for way in (WAYS["greedy"], WAYS["beam"]):
        together = model.generate(tokens(3, 7), max_steps=STEPS, cache=config, **way).token_ids
        for row in range(3):
            prompt = tokens(3, 7)[row : row + 1]
            alone = model.generate(prompt, max_steps=STEPS, cache=config, **way).token_ids[0]
            assert torch.equal(together[row, :, : alone.shape[1]], alone)
    assert max(most) == 6


def test_what_is_let_go_changes_the_text() -> None:
    model, way = tiny(spread=0.1, **OLMO2), WAYS["min_steps"]
    plain = made(model, way).token_ids
    assert not torch.equal(made(model, way, policy("window", budget=2)).token_ids, plain)


def test_a_bounded_window_is_the_model_with_that_window() -> None:
    way = {"min_steps": STEPS}
    one = CacheConfig(name="window", budget=4, chunk=1)
    evicting = made(tiny(spread=0.1, **OLMO2), way, one)
    masked = made(tiny(spread=0.1, **OLMO2, sliding_window=5), way)
    assert torch.equal(evicting.token_ids, masked.token_ids)


def test_what_makes_no_sense_is_refused() -> None:
    model, prompt = tiny(rope=True), tokens(2, 5)
    mask = torch.ones(2, 5, dtype=torch.long)
    heated = Preheated(model, [np.array([[1, 2]])])
    for cache in (policy("lru"), heated):
        with pytest.raises(ConfigError, match=r"cache=.*cannot be combined with attention_mask"):
            model.generate(prompt, cache=cache, attention_mask=mask)
        with pytest.raises(ConfigError, match="cannot be combined with attention_bias"):
            model.generate(prompt, cache=cache, attention_bias=torch.zeros(5, 5))
    with pytest.raises(ConfigError, match="keys and values of another model"):
        tiny(rope=True).generate(prompt, cache=heated)
    with pytest.raises(ConfigError, match=r"cache.preheat=4: is a number of n-grams"):
        model.generate(prompt, cache=CacheConfig(preheat=4))
    with pytest.raises(ConfigError, match="evictions shift"):
        tiny(alibi=True).generate(prompt, cache=policy("dynamic"))
    assert model.generate(prompt, cache=CacheConfig(), attention_mask=mask) is not None
