"""What preheated n-grams of the training text save on held-out prompts, after training."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ablate.config.schema.cache import CacheConfig
from ablate.data import Data, held_out_prompts, preheated_ngrams
from ablate.model.preheat import Preheated
from ablate.train.device import wait

__all__ = ["measure_preheating"]

REPEATS = 4
"""Of each measurement, of which the fastest counts."""


def measure_preheating(model: Any, data: Data, config: CacheConfig) -> dict[str, float]:
    """Hit rate, time and memory of the most frequent n-grams.

    Args:
        model: in any mode; it is left as it was.
        data: n-grams are those of its training text, prompts of its held-out text.
        config: how many of which lengths, and which prompts.

    Returns:
        Under `preheat/`: `hit_rate` (share of the prompts), `saved` (share of their tokens),
        `ngrams`, `bytes` (keys and values), `build_seconds` (to find and to compute them);
        `first_token_seconds` (from a prompt to the next token, one prompt at a time, mean) and
        `prompts_per_second` (all prompts at once), both also `_without` preheating;
        `first_token_ratio` and `throughput_ratio`, with to without, which are measured in turns and
        so differ less from trial to trial than seconds on a busy machine do.
    """
    training = model.training
    model.eval()
    start = time.perf_counter()
    tables = preheated_ngrams(data, config)
    heated, cold = Preheated(model, tables), Preheated(model, [])
    wait(model.device)
    build = time.perf_counter() - start
    prompts = held_out_prompts(data, config)
    hits = [heated.match(prompt) for prompt in prompts]
    seconds, without = [], []
    for prompt in [prompts[0], *prompts]:  # the first one is for warming up
        calls = [functools.partial(_first_token, p, prompt) for p in (heated, cold)]
        a, b = _fastest(model, calls)
        seconds.append(a)
        without.append(b)
    batches = [functools.partial(p.next_logits, prompts) for p in (heated, cold)]
    together, apart = _fastest(model, batches)
    model.train(training)
    return {
        "preheat/hit_rate": sum(hit is not None for hit in hits) / len(prompts),
        "preheat/saved": sum(h.length for h in hits if h) / sum(map(len, prompts)),
        "preheat/ngrams": float(sum(map(len, tables))),
        "preheat/bytes": float(heated.bytes),
        "preheat/build_seconds": build,
        "preheat/first_token_seconds": float(np.mean(seconds[1:])),
        "preheat/first_token_seconds_without": float(np.mean(without[1:])),
        "preheat/first_token_ratio": float(np.sum(seconds[1:]) / np.sum(without[1:])),
        "preheat/prompts_per_second": len(prompts) / together,
        "preheat/prompts_per_second_without": len(prompts) / apart,
        "preheat/throughput_ratio": apart / together,
    }


def _first_token(model: Preheated, prompt: list[int]) -> int:
    return int(model.read(prompt, last=True).logits[0, -1].argmax())


def _fastest(model: Any, calls: list[Callable[[], Any]]) -> list[float]:
    """Seconds of each call at its fastest; they take turns, so that a busy machine hits both, and
    each is first as often as last.
    """
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(REPEATS):
        for call, taken in list(zip(calls, times, strict=True))[:: 1 if turn % 2 else -1]:
            wait(model.device)
            start = time.perf_counter()
            call()
            wait(model.device)
            taken.append(time.perf_counter() - start)
    return [min(taken) for taken in times]
