"""What FSDP gathers at a time, by OLMo's wrapping strategies."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ablate.config.schema.parallel import EVERY
from ablate.errors import ConfigError
from ablate.model import OLMo

__all__ = ["units"]

LARGE = 10**8
"""Parameters from which `size_based` gathers a module by itself, as torch's own policy does."""


def units(model: OLMo, strategy: str | None, *, head: bool) -> Iterator[list[nn.Module]]:
    """Modules that are gathered together, in the order of the forward pass.

    What is in none of them is gathered with the whole model: the embeddings, the last norm, and
    the head where it shares the embedding's weights. Upstream's policies choose the same blocks.

    Args:
        model: on any device.
        strategy: see `ablate.model.sharding`; None: all at once.
        head: whether the model calls its head (a chunked loss reads the head's weights itself).

    Raises:
        ConfigError: a strategy by groups for a model without groups.
    """
    if strategy is None:
        return
    size, blocks = model.config.block_group_size, list(model.blocks)
    if "group" in strategy:
        if size == 1:
            remedy = "Set model.block_group_size above 1, or by_block"
            raise ConfigError("parallel.wrapping_strategy", strategy, "needs block groups", remedy)
        chosen: list[list[nn.Module]] = [
            list(blocks[i : i + size]) for i in range(0, len(blocks), size)
        ]
    elif strategy == "size_based":
        chosen = [[b] for b in blocks if sum(p.numel() for p in b.parameters()) >= LARGE]
    else:
        chosen = [[b] for i, b in enumerate(blocks) if i % EVERY.get(strategy, 1) == 0]
    yield from chosen
    if head and "size" in strategy and not model.config.weight_tying:
        yield [model.transformer["ff_out"]]  # type: ignore[index]
