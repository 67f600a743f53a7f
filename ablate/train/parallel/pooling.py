"""Measurements of a whole micro-batch from those of its equal parts, one a process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

__all__ = ["pool"]

Column = Float[np.ndarray, " w"]

LARGEST = ("model/attention_logit_max", "model/logit_max")
SMALLEST = ("model/logit_min",)
ROOT_MEAN_SQUARE = ("model/activation_rms", "model/log_z_rms")
"""Names of measurements, or what stands before the number of a layer; the others are means."""
WEIGHTS = "model/weight_norm"


def pool(columns: dict[str, Column], weight_norm: Callable[[Column], float]) -> dict[str, float]:
    """One number for each measurement.

    Args:
        columns: by name, the measurement of every process.
        weight_norm: of a tensor, from the norms of what the processes hold of it.
    """
    found: dict[str, float] = {}
    for name, column in columns.items():
        if name.startswith(WEIGHTS):
            found[name] = weight_norm(column)
        elif name.startswith(LARGEST):
            found[name] = float(column.max())
        elif name.startswith(SMALLEST):
            found[name] = float(column.min())
        elif name.startswith(ROOT_MEAN_SQUARE):
            found[name] = float(np.sqrt(np.square(column).mean()))
        elif name == "model/logit_std":
            found[name] = _deviation(column, columns["model/logit_mean"])
        else:
            found[name] = float(column.mean())
    return found


def _deviation(deviations: Column, means: Column) -> float:
    """Of all logits, from deviations and means of equal parts."""
    return float(np.sqrt(np.square(deviations).mean() + means.var()))
