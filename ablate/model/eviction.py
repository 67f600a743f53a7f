"""Which tokens a bounded key/value cache keeps: one function a policy, on plain vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.config.schema.cache import CacheConfig

__all__ = ["BY_ORDER", "KEEPERS", "Held"]


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a policy may look at, of each token of one layer, the oldest first."""

    positions: Int[Tensor, "n"]
    mass: Float[Tensor, "n"]
    """Attention that it ever got, over all queries and heads."""
    used: Int[Tensor, "n"]
    """Position of the last query that gave it more than an equal share."""
    new: int
    """So many of the last ones are newcomers, not admitted yet."""


def keep_all(held: Held, config: CacheConfig) -> Int[Tensor, "k"]:
    return torch.arange(len(held.positions), device=held.positions.device)


def keep_newest(held: Held, config: CacheConfig) -> Int[Tensor, "k"]:
    return _best(held.positions.double(), config.budget)


def keep_used(held: Held, config: CacheConfig) -> Int[Tensor, "k"]:
    """Of tokens that were used last by the same query, the newer stays."""
    return _best(held.used.double() + held.positions.double() * 1e-9, config.budget)


def keep_heavy(held: Held, config: CacheConfig) -> Int[Tensor, "k"]:
    return _best(_protected(held.mass.double(), held, config), config.budget)


def keep_mixed(held: Held, config: CacheConfig) -> Int[Tensor, "k"]:
    """Mixture x rank of recency + (1 - mixture) x attention mass, both as shares of the largest."""
    n = len(held.positions)
    recency = (held.positions.argsort().argsort().double() + 1) / n
    mass = held.mass.double() / held.mass.max().clamp_min(1e-30).double()
    score = config.mixture * recency + (1 - config.mixture) * mass
    return _best(_protected(score, held, config), config.budget)


def keep_as_published(held: Held, config: CacheConfig) -> Int[Tensor, "k"]:
    """Newcomers one by one: each takes the place of the least recently used, if it has more
    attention than that one; else it is not admitted. Nothing is protected.
    """
    n = len(held.positions)
    kept = list(range(n - held.new))
    mass, used = held.mass.tolist(), held.used.tolist()
    for newcomer in range(n - held.new, n):
        if len(kept) < config.budget:
            kept.append(newcomer)
            continue
        oldest = min(kept, key=lambda i: (used[i], i))
        if mass[newcomer] > mass[oldest]:
            kept.remove(oldest)
            kept.append(newcomer)
    return torch.tensor(sorted(kept), device=held.positions.device)


KEEPERS: dict[str, Callable[[Held, CacheConfig], Tensor]] = {
    "full": keep_all,
    "window": keep_newest,
    "lru": keep_used,
    "heavy_hitter": keep_heavy,
    "dynamic": keep_mixed,
    "dynamic_as_published": keep_as_published,
}
"""Each gives the indices that stay, in order."""
BY_ORDER = ("full", "window")
"""Those that look at no attention."""


def _protected(score: Tensor, held: Held, config: CacheConfig) -> Tensor:
    """Sinks and the recent window come before all else."""
    first = held.positions < config.sinks
    last = held.positions > int(held.positions.max()) - config.recent
    return score.masked_fill(first | last, torch.inf)


def _best(score: Tensor, count: int) -> Tensor:
    """The highest scores; of equal ones the later."""
    if len(score) <= count:
        return torch.arange(len(score), device=score.device)
    order = (-score.flip(0)).argsort(stable=True)[:count]
    return (len(score) - 1 - order).sort().values
