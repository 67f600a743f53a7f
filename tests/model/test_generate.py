"""Generation: upstream's beam search token for token, and the laws of sampling."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from ablate.errors import ConfigError
from ablate.model.sampling import (
    Greedy,
    LengthNormalized,
    Multinomial,
    NoRepeatedNGrams,
    TopK,
    TopP,
)
from tests.model.models import OLMO2, difference, tiny, tokens, upstream

MASK = torch.ones(3, 7, dtype=torch.long).index_put(
    (torch.tensor(0), torch.arange(3)), torch.tensor(0)
)


@pytest.mark.parametrize(
    "fields", [{}, {"rope": True, "n_kv_heads": 2}, {"alibi": True}, OLMO2], ids=str
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 4},
        {"beam_size": 3, "per_node_beam_size": 5, "attention_mask": MASK},
        {"beam_size": 4, "min_steps": 5},
    ],
    ids=["greedy", "beam", "masked", "min_steps"],
)
def test_beam_search_equals_upstream(fields: dict[str, Any], options: dict[str, Any]) -> None:
    model, prompt = tiny(spread=0.1, **fields), tokens(3, 7)
    want = upstream(model).generate(prompt, **options)
    got = model.generate(prompt, **options)
    assert torch.equal(got.token_ids, want.token_ids)
    assert difference(got.scores, want.scores) < 1e-5


def test_greedy_takes_the_most_probable_token_each_time() -> None:
    model, prompt = tiny(rope=True), tokens(2, 5)
    text = prompt
    for _ in range(8):
        text = torch.cat((text, model(text).logits[:, -1:].argmax(-1)), dim=1)
    got = model.generate(prompt, max_steps=8, min_steps=0).token_ids[:, 0]
    ended = (text[:, 5:] == 1).cumsum(1) > 0
    assert torch.equal(
        got[~ended[:, : got.shape[1]]], text[:, 5 : 5 + got.shape[1]][~ended[:, : got.shape[1]]]
    )


def test_the_score_is_the_log_probability_of_the_sequence() -> None:
    model, prompt = tiny(rope=True), tokens(2, 5)
    out = model.generate(prompt, max_steps=6, min_steps=6, beam_size=3)
    for row in range(2):
        for beam in range(3):
            text = torch.cat((prompt[row], out.token_ids[row, beam]))[None]
            log_probs = model(text).logits.log_softmax(-1)[0, 4:-1]
            total = log_probs.gather(-1, out.token_ids[row, beam][:, None]).sum()
            assert out.scores[row, beam] == pytest.approx(total.item(), abs=1e-4)
    assert (out.scores.diff(dim=1) <= 0).all()


def test_an_ended_sequence_repeats_eos_at_no_cost() -> None:
    model = tiny(spread=0.05, weight_tying=False)
    with torch.no_grad():
        model.transformer["ff_out"].bias[1] = 50.0
    out = model.generate(tokens(2, 4), max_steps=6)
    assert out.token_ids.tolist() == [[[1]], [[1]]]
    late = model.generate(tokens(2, 4), max_steps=6, min_steps=2)
    assert (late.token_ids[..., :2] != 1).all()
    assert (late.token_ids[..., 2:] == 1).all()


def test_the_first_token_is_sampled_too() -> None:
    model, prompt = tiny(spread=0.05, rope=True), tokens(1, 4).expand(4000, -1)
    sampler = Multinomial(generator=torch.Generator().manual_seed(0))
    first = model.generate(prompt, max_steps=1, sampler=sampler).token_ids[:, 0, 0]
    frequency = torch.bincount(first, minlength=64) / len(first)
    want = model(prompt[:1]).logits[0, -1].softmax(-1)
    assert (frequency - want).abs().max() < 5 * (want.max() / 4000).sqrt()
    assert (frequency > 0).sum() > 30


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_drawing_without_replacement_is_fair_and_distinct(temperature: float) -> None:
    log_probs = torch.randn(6, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    sampler = Multinomial(temperature=temperature, generator=torch.Generator().manual_seed(1))
    values, chosen = sampler(log_probs.expand(20000, -1), 3)
    assert all(len(set(row)) == 3 for row in chosen[:200].tolist())
    assert torch.equal(values, log_probs[chosen])
    first = torch.bincount(chosen[:, 0], minlength=6) / 20000
    assert (first - (log_probs / temperature).softmax(-1)).abs().max() < 0.015


def test_top_k_and_top_p_stay_within_their_sets() -> None:
    log_probs = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(2000, -1)
    for sampler, allowed in (
        (TopK(k=2, with_replacement=True), {0, 1}),
        (TopK(k=1), {0}),
        (TopP(p=0.79), {0, 1}),
        (TopP(p=0.81), {0, 1, 2}),
        (TopP(p=0.01), {0}),
        (TopP(p=1.0), {0, 1, 2, 3}),
    ):
        values, chosen = sampler(log_probs, 1)
        assert set(chosen.flatten().tolist()) == allowed
    values, _ = TopK(k=1)(log_probs, 2)
    assert torch.isinf(values[:, 1]).all()
    assert torch.equal(Greedy()(log_probs, 2)[1][0], torch.tensor([0, 1]))


def test_no_n_gram_occurs_twice() -> None:
    model = tiny(spread=0.05)
    free = model.generate(tokens(2, 4), max_steps=20, min_steps=20).token_ids[0, 0].tolist()
    pairs = list(pairwise(free))
    assert len(set(pairs)) < len(pairs), "the unconstrained text must repeat itself for this test"
    for n in (1, 2):
        out = model.generate(
            tokens(2, 4), max_steps=20, min_steps=20, constraints=[NoRepeatedNGrams(n=n)]
        )
        text = out.token_ids[0, 0].tolist()
        runs = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        assert len(set(runs)) == len(runs)


def test_a_length_penalty_ranks_by_log_probability_per_token() -> None:
    sequences = torch.tensor([[[5, 1, 1, 1], [5, 6, 7, 8]]])
    scores = LengthNormalized(penalty=1.0)(sequences, torch.tensor([[-2.0, -3.0]]), 1)
    assert scores.tolist() == [[-1.0, -0.75]]


def test_a_bias_over_the_prompt_stays_in_force() -> None:
    model, prompt = tiny(rope=True), tokens(2, 6)
    first = torch.ones(6, 6, dtype=torch.bool).tril()
    first[:, 0] = False
    first[0, 0] = True
    got = model.generate(prompt, max_steps=1, attention_bias=first).token_ids[:, 0, 0]
    assert torch.equal(got, model(prompt, attention_bias=first).logits[:, -1].argmax(-1))
    model.generate(prompt, max_steps=4, beam_size=2, attention_bias=first)


def test_training_mode_is_restored_and_nonsense_refused() -> None:
    model = tiny().train()
    model.generate(tokens(1, 3), max_steps=2)
    assert model.training
    with pytest.raises(ConfigError, match="max_steps=0"):
        model.generate(tokens(1, 3), max_steps=0)
    with pytest.raises(ConfigError, match=r"sampler\.temperature"):
        Multinomial(temperature=0.0)
