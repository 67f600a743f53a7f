"""Held-out text as one long stream through a bounded key/value cache, beside the full one."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from ablate.config.schema.cache import CacheConfig
from ablate.model.streaming import Stream

__all__ = ["measure_cache"]


@torch.no_grad()
def measure_cache(
    model: Any, ids: Int[Tensor, "1 t"], config: CacheConfig, *, reference: bool = True
) -> dict[str, float]:
    """Perplexity, hit rate and bytes of a policy on a stream.

    Args:
        model: in any mode; it is left as it was.
        ids: the stream.
        config: the policy.
        reference: whether to read the stream with the full cache too.

    Returns:
        `cache/perplexity` and `cache/bytes` (keys and values of all layers, at most); with
        `reference` also `cache/perplexity_full`, `cache/bytes_full`, and `cache/hit_rate`: of the
        attention that the full cache's queries give, the share that goes to what the bounded cache
        could see at that step, over all layers.
    """
    training = model.training
    model.eval()
    own = Stream(model, config, observed=reference and config.name == "full")
    whole = CacheConfig(name="full", chunk=config.chunk)
    full = None
    if reference:  # the full cache is its own
        full = own if config.name == "full" else Stream(model, whole, observed=True)
    nats, nats_full, held, total = 0.0, 0.0, 0.0, 0.0
    for start in range(0, ids.shape[1], config.chunk):
        part = ids[:, start : start + config.chunk]
        labels = ids[0, start + 1 : start + config.chunk + 1]
        here = _nats(own.read(part), labels)
        nats += here
        if full is None:
            continue
        nats_full += here if full is own else _nats(full.read(part), labels)
        for mine, other in zip(own.layers, full.layers, strict=True):
            assert mine.seen is not None
            assert other.seen is not None
            held += float(other.seen[1][mine.seen[0]].sum())
            total += float(other.seen[1].sum())
    model.train(training)
    count = ids.shape[1] - 1
    row = {"cache/perplexity": math.exp(nats / count), "cache/bytes": float(own.bytes)}
    if full is not None:
        row |= {
            "cache/perplexity_full": math.exp(nats_full / count),
            "cache/bytes_full": float(full.bytes),
            "cache/hit_rate": held / total,
        }
    return row


def _nats(logits: Tensor, labels: Tensor) -> float:
    return F.cross_entropy(
        logits[0, : len(labels)].float(), labels.to(logits.device), reduction="sum"
    ).item()
