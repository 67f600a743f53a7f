"""What caches are measured on after training: a stream and prompts of the held-out text."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from ablate.config.schema.cache import CacheConfig
from ablate.data.dataset import Data
from ablate.data.ngrams import frequent_ngrams
from ablate.errors import DataError

__all__ = ["check_inference", "held_out_prompts", "preheated_ngrams", "stream_tokens"]

LONGEST = 2**24
"""Tokens of the training text, from its beginning, that are counted: a bound on time and memory."""


def check_inference(data: Data, config: CacheConfig) -> None:
    """Whether there is text enough, asked before anything is trained.

    Raises:
        DataError: naming the field that asks for too much.
    """
    held = len(data.held_out)
    if config.name != "none" and held < config.tokens:
        raise DataError(
            f"cache.tokens={config.tokens}: the held-out text of data {data.name} has {held} "
            "tokens. Lower it, or raise data.validation_fraction."
        )
    if not config.preheat:
        return
    longest = max(config.preheat_n)
    if len(data.train) < longest:
        raise DataError(
            f"cache.preheat_n={config.preheat_n}: the training text of data {data.name} has "
            f"{len(data.train)} tokens, and so no n-gram of {longest}. Give more text, or lower it."
        )
    needed = config.prompts * config.prompt_tokens
    if held < needed:
        raise DataError(
            f"cache.prompts={config.prompts} of cache.prompt_tokens={config.prompt_tokens} need "
            f"{needed} tokens, and the held-out text has {held}. Lower one of them, or raise "
            "data.validation_fraction."
        )


def stream_tokens(data: Data, config: CacheConfig) -> Int64[np.ndarray, "t"]:
    """The first cache.tokens of the held-out text."""
    return data.held_out.read(0, config.tokens)


def preheated_ngrams(data: Data, config: CacheConfig) -> list[Int64[np.ndarray, "k n"]]:
    """The most frequent n-grams of the training text, a table for each of cache.preheat_n."""
    tokens = data.train.read(0, min(len(data.train), LONGEST))
    return [frequent_ngrams(tokens, n, config.preheat) for n in config.preheat_n]


def held_out_prompts(data: Data, config: CacheConfig) -> list[list[int]]:
    """Prompts that begin at even distances in the held-out text, the first at its beginning."""
    last = len(data.held_out) - config.prompt_tokens
    starts = [i * last // max(config.prompts - 1, 1) for i in range(config.prompts)]
    return [data.held_out.read(s, s + config.prompt_tokens).tolist() for s in starts]
