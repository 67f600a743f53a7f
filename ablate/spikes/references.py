"""Rules in use elsewhere, under their names, for comparison. Each flags rows.

They are written from their published definitions. Note what they share: the windows hold the very
spikes that they saw, and the noise of the whole window includes its trend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ablate.spikes.robust import MAD_TO_SIGMA

__all__ = ["RULES", "kill_loss_spike", "mad", "olmo2_score", "skip_step", "stability_monitor"]

Values = Sequence[float] | NDArray[np.float64]
Flags = NDArray[np.bool_]
CHUNK = 4096


def olmo2_flags(values: Values, window: int = 1000, sigmas: float = 7.0) -> Flags:
    """Values that lie at least 7 std from the average of the 1000 before (arXiv 2501.00656)."""
    mean, std = _moments(values, window, window, ddof=0)
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return (np.abs(x - mean) >= sigmas * std) & (std > 0)


def olmo2_score(values: Values, window: int = 1000, sigmas: float = 7.0) -> float:
    """The published spike score: the percentage of values that `olmo2_flags` flags."""
    n = len(values)
    return 100.0 * float(olmo2_flags(values, window, sigmas).sum()) / n if n else 0.0


def skip_step(values: Values, window: int = 128, sigmas: float = 6.0) -> Flags:
    """OLMo-core's SkipStepOptimizer on one series: over mean + 6 std of the last 128.

    It never skips before 64 values are held; one NaN in the window skips every step.
    """
    mean, std = _moments(values, window, window // 2, ddof=1)
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        keep = x - mean <= sigmas * std
    held = np.arange(len(x)) >= window // 2
    return held & ~keep


def stability_monitor(values: Values, window: int = 128, sigmas: float = 6.0) -> Flags:
    """OLMo-core's StabilityMonitorCallback: the same over a full window; NaN is never over."""
    mean, std = _moments(values, window, window, ddof=0)
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return (x > mean + sigmas * std) & (std >= 1e-10)


def kill_loss_spike(values: Values, ratio: float = 2.0, patience: int = 5) -> Flags:
    """llm-foundry's KillLossSpike: 5 steps of twice the window mean, or half the window too high.

    The window is the larger of 100 and 5 % of the run; after two windows, half of it over
    min(10, the highest of the first) flags too.
    """
    x = np.asarray(values, dtype=np.float64)
    window = max(100, len(x) // 20)
    mean, _ = _moments(x, window, window, ddof=0)
    with np.errstate(invalid="ignore"):
        over = x >= ratio * mean
    run = np.zeros(len(x), dtype=np.int64)
    for i in np.flatnonzero(over):
        run[i] = 1 + (run[i - 1] if i else 0)
    flags = run >= patience
    if len(x) > 2 * window:
        cap = min(10.0, float(np.max(x[:window])))
        count = np.convolve(x > cap, np.ones(window), mode="full")[: len(x)]
        flags |= (np.arange(len(x)) >= 2 * window) & (count >= window / 2)
    return flags


def mad(values: Values, window: int = 128, sigmas: float = 6.0) -> Flags:
    """Hampel's rule: over median + 6 x 1.4826 MAD of the last 128, from 64 held on."""
    x = np.asarray(values, dtype=np.float64)
    flags = np.zeros(len(x), dtype=bool)
    for start, stop, rows in _windows(x, window, window // 2):
        with np.errstate(invalid="ignore"):
            centre = np.median(rows, axis=1)
            spread = MAD_TO_SIGMA * np.median(np.abs(rows - centre[:, None]), axis=1)
            flags[start:stop] = (x[start:stop] > centre + sigmas * spread) & (spread > 0)
    return flags


RULES: dict[str, Callable[[Values], Flags]] = {
    "olmo2_score": olmo2_flags,
    "skip_step": skip_step,
    "stability_monitor": stability_monitor,
    "kill_loss_spike": kill_loss_spike,
    "mad": mad,
}


def _windows(x: NDArray[np.float64], window: int, least: int):
    """(start, stop, the windows of values before rows start..stop), growing windows one by one."""
    for i in range(least, min(window, len(x))):
        yield i, i + 1, x[None, :i]
    if len(x) > window:
        view = sliding_window_view(x[:-1], window)
        for start in range(0, len(view), CHUNK):
            part = view[start : start + CHUNK]
            yield window + start, window + start + len(part), part


def _moments(
    values: Values, window: int, least: int, ddof: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and std of the window before each row; NaN where fewer than `least` are held."""
    x = np.asarray(values, dtype=np.float64)
    mean, std = np.full(len(x), np.nan), np.full(len(x), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        for start, stop, rows in _windows(x, window, least):
            mean[start:stop] = rows.mean(axis=1)
            std[start:stop] = rows.std(axis=1, ddof=ddof)
    return mean, std
