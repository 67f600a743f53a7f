"""Corroboration: gradient norm and its like, which make bad alarms and good witnesses.

Of 145 spikes of the gradient norm in real runs, 16 had a loss excursion beside them. So a signal
never opens an event; it is asked afterwards whether it fired, how high, and how much earlier.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from ablate.spikes.robust import MAD_TO_SIGMA, mad, middle

__all__ = ["Signal", "of_row"]

WINDOW, REFRESH, LEAST, SIGMAS = 64, 8, 16, 6.0
LOOK_BACK = 16
"""Rows before the start of an event in which a signal that fired led it."""
SILENT = 2
"""Measurements between two firings of one rise. A single one well before it, as of a signal that
grows slowly, leads nothing.
"""


NAMES = {"train/grad_norm": "grad_norm", "train/update_norm": "update_norm", "lr": "lr"}
LAYERED = {
    "model/attention_logit_max/": "attention_logit",
    "model/activation_rms/": "activation_rms",
}


def of_row(row: Mapping[str, Any]) -> dict[str, float]:
    """The signals in a row of metrics.jsonl; of what is measured by layer, the highest."""
    found = {name: float(row[key]) for key, name in NAMES.items() if key in row}
    if "model/weight_norm" in row:  # a row with the slower measurements
        for prefix, name in LAYERED.items():
            values = [v for k, v in row.items() if k.startswith(prefix)]
            if values:
                found[name] = max(values)
    return found


class Signal:
    """The logarithm of one positive series against its own median and MAD."""

    def __init__(self) -> None:
        self.logs: deque[float] = deque(maxlen=WINDOW)
        self.count = 0
        self.level = 0.0
        self.limit = float("inf")
        self.measured = 0
        self.fired: deque[tuple[int, int, float, int]] = deque(maxlen=2 * LOOK_BACK)
        """Row, step and ratio of the last rows that were out of the ordinary, and which measurement
        each was.
        """

    def update(self, row: int, step: int, value: float, *, calm: bool) -> None:
        """Takes in a row; only calm ones form the usual value."""
        if not value > 0:  # not a number: not measured at this row
            return
        self.measured += 1
        log = math.log(value) if value < math.inf else math.inf
        if log > self.limit or log == math.inf:
            ratio = math.exp(min(log - self.level, 700.0)) if log < math.inf else math.inf
            self.fired.append((row, step, ratio, self.measured))
        # What fired while the loss is calm counts too, or a signal that settles higher fires for
        # ever. Median and MAD bear single ones.
        if not calm or log == math.inf:
            return
        self.logs.append(log)
        self.count += 1
        if self.count % REFRESH == 0 and self.count >= LEAST:
            ordered = sorted(self.logs)
            self.level = middle(ordered)
            spread = max(MAD_TO_SIGMA * mad(ordered), 1e-3)
            self.limit = self.level + SIGMAS * spread

    def witness(self, start_row: int, start: int, end_row: int) -> dict[str, float] | None:
        """Ratio at its highest and lead in steps (negative: later), or None if it was silent."""
        near = [f for f in self.fired if start_row - LOOK_BACK <= f[0] <= end_row]
        if not near:
            return None
        first = next((i for i, f in enumerate(near) if f[0] >= start_row), len(near) - 1)
        while first > 0 and near[first][3] - near[first - 1][3] <= SILENT + 1:
            first -= 1
        return {"ratio": max(f[2] for f in near), "lead": float(start - near[first][1])}

    def state_dict(self) -> dict[str, Any]:
        return {
            "logs": list(self.logs),
            "count": self.count,
            "level": self.level,
            "limit": None if math.isinf(self.limit) else self.limit,
            "measured": self.measured,
            "fired": [[r, s, None if math.isinf(x) else x, n] for r, s, x, n in self.fired],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.logs = deque(state["logs"], maxlen=WINDOW)
        self.count, self.level = state["count"], state["level"]
        self.limit = float("inf") if state["limit"] is None else state["limit"]
        self.measured = state.get("measured", 0)  # not in states of old, nor which each was
        fired = [
            (r, s, float("inf") if x is None else x, n[0] if n else r - state["fired"][-1][0])
            for r, s, x, *n in state["fired"]
        ]
        self.fired = deque(fired, maxlen=2 * LOOK_BACK)
