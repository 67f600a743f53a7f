"""Preheated beginnings: the right n-grams, found by their longest match, and exact."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from ablate.config.schema import CacheConfig, TrialConfig
from ablate.data import frequent_ngrams
from ablate.errors import ConfigError
from ablate.model.preheat import Hit, Preheated
from tests.model.models import OLMO2, tiny, tokens

CASES: dict[str, dict[str, Any]] = {
    "learned": {},
    "hybrid": {"position": "hybrid"},
    "sinusoidal": {"position": "sinusoidal"},
    "none": {"position": "none"},
    "alibi": {"alibi": True, "n_kv_heads": 1},
    "relative": {"position": "relative"},
    "rope, grouped": {"rope": True, "n_kv_heads": 2},
    "olmo2": OLMO2,
    "window": {"rope": True, "sliding_window": 3},
    "OLMo 3": OLMO2
    | {"sliding_window_pattern": [5, -1], "yarn_factor": 4.0, "yarn_original_length": 8},
    "llama, grouped": {"rope": True, "block_type": "llama", "n_kv_heads": 2},
}
PROMPTS: list[list[int]] = tokens().tolist()
OTHERS = np.random.default_rng(0).integers(0, 64, (20, 3))


def beginnings() -> list[np.ndarray]:
    """Among others, 3 tokens of the first prompt, and 3 and 5 of the second."""
    three = np.concatenate((OTHERS, [PROMPTS[0][:3], PROMPTS[1][:3]]))
    return [three, np.array([PROMPTS[1][:5]])]


@pytest.mark.parametrize("case", CASES)
def test_with_a_hit_the_logits_are_those_without(case: str) -> None:
    model = tiny(**CASES[case]).eval()
    heated = Preheated(model, beginnings())
    expected = model(torch.tensor(PROMPTS)).logits
    bound = 1e-6 * expected.abs().max()
    for prompt, whole, length in zip(PROMPTS, expected, (3, 5), strict=True):
        found = heated.read(prompt)
        assert found.logits.shape[1] == len(prompt) - length, "what is held is not read again"
        assert (found.logits[0] - whole[length:]).abs().max() <= bound
        cache = model(torch.tensor([prompt]), use_cache=True).attn_key_values
        assert found.attn_key_values is not None
        assert cache is not None
        for mine, other in zip(found.attn_key_values, cache, strict=True):
            for a, b in zip(mine, other, strict=True):
                assert a.shape == b.shape
                assert (a - b).abs().max() <= 1e-6 * b.abs().max()
    missed = [0, 0, 0, *PROMPTS[0][3:]]
    together = heated.next_logits([PROMPTS[1], missed, PROMPTS[0]])
    wanted = model(torch.tensor([PROMPTS[1], missed, PROMPTS[0]])).logits[:, -1]
    assert (together - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def test_what_is_held_is_what_is_read() -> None:
    heated = Preheated(tiny(**OLMO2).eval(), beginnings())
    before = heated.read(PROMPTS[0]).logits
    keys, _ = heated.tables[3][0]
    keys[20] += 1
    assert not torch.allclose(before, heated.read(PROMPTS[0]).logits)


def test_the_longest_beginning_that_leaves_a_token_holds() -> None:
    heated = Preheated(tiny().eval(), beginnings())
    prompt = PROMPTS[1]
    assert heated.match(prompt) == Hit(5, 0)
    assert heated.match(prompt[:5]) == Hit(3, 21), "of 5 tokens, 5 would leave nothing to read"
    assert heated.match(prompt[:3]) is None
    assert heated.match([*PROMPTS[0][:2], 63 - PROMPTS[0][2], 1]) is None
    assert heated.bytes == (22 * 3 + 5) * 2 * 2 * 32 * 4, "tokens, layers, K and V, width, float32"


@pytest.mark.parametrize(("n", "largest"), [(1, 3), (2, 4), (3, 4), (5, 2), (2, 2**17), (3, 1)])
def test_the_most_frequent_ngrams_are_those_of_a_count(n: int, largest: int) -> None:
    steps = np.random.default_rng(n).integers(0, 4, 400)
    stream = steps * (largest // 4) if largest > 4 else steps % largest
    places = [tuple(stream[i : i + n].tolist()) for i in range(len(stream) - n + 1)]
    ranked = sorted(Counter(places).items(), key=lambda item: (-item[1], item[0]))
    for count in (1, 5, 10_000):
        found = [tuple(row) for row in frequent_ngrams(stream, n, count).tolist()]
        assert found == [ngram for ngram, _ in ranked[:count]]


def test_a_stream_shorter_than_an_ngram_has_none() -> None:
    assert frequent_ngrams(np.array([1, 2]), 3, 5).shape == (0, 3)
    assert frequent_ngrams(np.array([1, 2, 3]), 3, 5).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"preheat": -1}, "cache.preheat=-1: must not be negative"),
        ({"preheat": 1, "prompt_tokens": 3}, "leaves no token of prompts of 3"),
        ({"preheat": 1, "preheat_n": [3, 32]}, "leaves no token of prompts of 32"),
        ({"preheat_n": []}, "must list different lengths"),
        ({"preheat_n": [0]}, "must list different lengths"),
        ({"preheat_n": [3, 3]}, "must list different lengths"),
        ({"prompts": 0}, "cache.prompts=0: must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason.replace("[", r"\[")):
        CacheConfig(**fields)


def test_prompts_beyond_a_learned_table_and_several_processes_are_refused() -> None:
    cache = {"preheat": 1, "prompt_tokens": 64}
    model = {"max_sequence_length": 32}
    with pytest.raises(ConfigError, match=r"cache.prompt_tokens=64: exceeds"):
        TrialConfig.from_mapping({"model": model, "cache": cache})
    TrialConfig.from_mapping({"model": {**model, "rope": True}, "cache": cache})
    TrialConfig.from_mapping({"model": {**model, "alibi": True}, "cache": cache})
    with pytest.raises(ConfigError, match=r"cache.preheat=1: is measured in one process"):
        TrialConfig.from_mapping({"parallel": {"name": "ddp"}, "cache": cache})
