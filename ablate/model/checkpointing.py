"""Activation checkpointing: what a backward pass computes again instead of having kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ablate.model.config import ModelConfig
from ablate.model.variants import find

__all__ = ["STRATEGIES", "checkpointer", "checkpoints_block"]

STRATEGIES: dict[str, Callable[[int], bool]] = {
    "whole_layer": lambda layer: True,
    "one_in_two": lambda layer: layer % 2 == 0,
    "one_in_three": lambda layer: layer % 3 == 0,
    "one_in_four": lambda layer: layer % 4 == 0,
    "one_in_eight": lambda layer: layer % 8 == 0,
    "two_in_three": lambda layer: layer % 3 != 0,
    "three_in_four": lambda layer: layer % 4 != 0,
    "fine_grained": lambda layer: False,
}
"""Which blocks are recomputed as a whole; fine_grained: norms, attention, activation."""


def checkpoints_block(strategy: str | None, layer: int) -> bool:
    """Whether `strategy` recomputes the block with this (global) index.

    Raises:
        ConfigError: there is no such strategy.
    """
    return strategy is not None and find(STRATEGIES, strategy, "activation_checkpointing")(layer)


def checkpointer(config: ModelConfig) -> Callable[..., Any]:
    """A `run(function, *inputs)` that is recomputed in the backward pass.

    The state of the random generators is restored only if dropout or noise needs it.
    """
    from torch.utils.checkpoint import checkpoint  # the table above is read without torch, too

    drops = config.attention_dropout or config.residual_dropout or config.embedding_dropout
    drops = drops or config.norm_noise
    return partial(checkpoint, use_reentrant=False, preserve_rng_state=bool(drops))
