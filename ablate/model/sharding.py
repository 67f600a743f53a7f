"""Which modules FSDP wraps: policies in torch's form, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from ablate.config.schema.parallel import EVERY, STRATEGIES
from ablate.errors import ConfigError
from ablate.model.block import Block, BlockGroup

__all__ = ["wrap_policy"]


def wrap_policy(model: nn.Module, strategy: str | None) -> Callable[..., bool] | None:
    """The policy: (module, recurse, nonwrapped_numel) -> whether to wrap (or to look inside).

    by_block(_group): each block (group). …_and_size: the embedding and the untied head as well.
    one_in_n: blocks whose index is a multiple of n. size_based: torch's own, by parameter count.

    Raises:
        ConfigError: no such strategy, or a strategy by groups for a model without groups.
    """
    if strategy is None:
        return None
    if strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError("fsdp.wrapping_strategy", strategy, f"must be one of {known}")
    if strategy == "size_based":
        # FSDP takes as long to import as torch itself, and no trial needs it.
        from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

        return size_based_auto_wrap_policy
    if "group" in strategy and not any(isinstance(m, BlockGroup) for m in model.modules()):
        remedy = "Set model.block_group_size above 1, or wrap by_block"
        raise ConfigError("fsdp.wrapping_strategy", strategy, "needs block groups", remedy)
    parts: nn.ModuleDict = model.transformer  # type: ignore[assignment]
    large = (
        [parts[name] for name in ("wte", "ff_out") if name in parts] if "size" in strategy else []
    )
    kind = BlockGroup if "group" in strategy else Block
    every = EVERY.get(strategy, 1)

    def wraps(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        if recurse:
            return True
        if isinstance(module, kind):
            return getattr(module, "layer", 0) % every == 0
        return any(module is one for one in large)

    return partial(wraps)
