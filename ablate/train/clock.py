"""Measuring steps side by side: alternating, with ratios and how sure they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

__all__ = ["CLOCKS", "Ratio", "alternate", "ratio", "spread"]

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""wall: what a user waits. cpu: of this process, where others share the machine (no GPU)."""
DRAWS = 4000


def alternate(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm: int = 3,
    clock: str = "wall",
    tell: Callable[[str], object] = lambda name: None,
) -> dict[str, Float64[np.ndarray, " rounds"]]:
    """Seconds of each step in each round; a round runs each once, in an order that rotates.

    Args:
        steps: by name; each must have waited for its device when it returns.
        rounds: that are measured.
        warm: steps of each before that.
        clock: of `CLOCKS`.
        tell: called with the name after each step, the warm ones included.
    """
    now, names = CLOCKS[clock], list(steps)
    for name in names * warm:
        steps[name]()
        tell(name)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        k = i % len(names)
        for name in names[k:] + names[:k]:
            began = now()
            steps[name]()
            seconds[name].append(now() - began)
            tell(name)
    return {name: np.array(values) for name, values in seconds.items()}


@dataclass(frozen=True)
class Ratio:
    """Of medians, with a 95 % interval."""

    middle: float
    low: float
    high: float


def ratio(
    peer: Float64[np.ndarray, " rounds"], own: Float64[np.ndarray, " rounds"], seed: int = 0
) -> Ratio:
    """Peer's time over own time; the interval is a bootstrap over rounds, which stay paired."""
    index = np.random.default_rng(seed).integers(0, len(own), (DRAWS, len(own)))
    samples = np.median(peer[index], axis=1) / np.median(own[index], axis=1)
    low, high = np.quantile(samples, [0.025, 0.975])
    return Ratio(float(np.median(peer) / np.median(own)), float(low), float(high))


def spread(seconds: Float64[np.ndarray, " rounds"]) -> float:
    """Half the range of the middle half, as a share of the median."""
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return float((high - low) / 2 / middle)
