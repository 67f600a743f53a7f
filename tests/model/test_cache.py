"""Cached and uncached passes compute the same; caches hold what upstream's hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.errors import DataError
from tests.model.models import OLMO2, difference, tiny, tokens, upstream

CASES: dict[str, dict[str, Any]] = {
    "learned": {},
    "rope": {"rope": True, "n_kv_heads": 2},
    "OLMo 2": OLMO2,
    "alibi": {"alibi": True, "n_kv_heads": 1},
    "sinusoidal": {"position": "sinusoidal"},
    "relative": {"position": "relative"},
    "window": {"rope": True, "sliding_window": 4},
    "OLMo 3": OLMO2
    | {"sliding_window_pattern": [5, -1], "yarn_factor": 4.0, "yarn_original_length": 8},
    "llama, grouped": {"rope": True, "block_type": "llama", "n_kv_heads": 2},
    "llama": {"block_type": "llama", "clip_qkv": 0.5},
}


@pytest.mark.parametrize("chunks", [(9, 1, 1, 1, 4), (16,), (3, 13)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_sequence_in_pieces_equals_the_whole(case: str, chunks: tuple[int, ...]) -> None:
    model, x = tiny(**CASES[case]), tokens()
    past, logits = None, []
    for piece in x.split(chunks, dim=1):
        out = model(piece, past_key_values=past, use_cache=True)
        past = out.attn_key_values
        logits.append(out.logits)
    assert difference(torch.cat(logits, 1), model(x).logits) < 2e-6


@pytest.mark.parametrize("case", ["learned", "rope", "OLMo 2", "alibi", "llama"])
def test_caches_are_interchangeable_with_upstreams(case: str) -> None:
    model, x = tiny(**CASES[case]), tokens()
    peer = upstream(model)
    ours = model(x[:, :9], use_cache=True).attn_key_values
    theirs = peer(x[:, :9], use_cache=True).attn_key_values
    for mine, reference in zip(ours, theirs, strict=True):
        for a, b in zip(mine, reference, strict=True):
            assert a.shape == b.shape
            assert difference(a, b) < 1e-6
    want = peer(x[:, 9:], past_key_values=ours).logits
    assert difference(model(x[:, 9:], past_key_values=theirs).logits, want) < 1e-6


def test_a_padding_mask_covers_cached_positions_too() -> None:
    model, x = tiny(rope=True), tokens()
    mask = torch.ones(2, 16)
    mask[0, :3] = 0
    past = model(x[:, :9], attention_mask=mask[:, :9], use_cache=True).attn_key_values
    got = model(x[:, 9:], attention_mask=mask, past_key_values=past).logits
    assert difference(got, model(x, attention_mask=mask).logits[:, 9:]) < 2e-6


def test_without_use_cache_there_is_none() -> None:
    assert tiny()(tokens()).attn_key_values is None


def test_a_cache_of_another_depth_is_refused() -> None:
    model = tiny()
    past = model(tokens(), use_cache=True).attn_key_values
    with pytest.raises(DataError, match="past_key_values has 1 entries"):
        model(tokens(), past_key_values=past[:1])


def test_the_last_logits_and_hidden_states() -> None:
    model, x = tiny(n_layers=4, block_group_size=2), tokens()
    whole = model(x, output_hidden_states=True)
    assert len(whole.hidden_states) == 3
    last = model(x, last_logits_only=True)
    assert last.logits.shape == (2, 1, 64)
    assert difference(last.logits, whole.logits[:, -1:]) < 1e-6
    assert last.hidden_states is None


def test_embeddings_may_be_given_instead_of_tokens() -> None:
    model, x = tiny(embedding_layer_norm=True), tokens()
    embedded = model.transformer["wte"](x)
    assert torch.equal(model(x, input_embeddings=embedded).logits, model(x).logits)


def test_tables_made_in_inference_mode_serve_training_too() -> None:
    model = tiny(rope=True, attention_backend="math")
    with torch.inference_mode():
        model(tokens())
    model(tokens()).logits.sum().backward()
