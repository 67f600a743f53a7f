"""The rules by which a trial answers its own spikes; `ablate.train.respond` carries them out.

Plain numbers, one step at a time, with a state that is exact after a resume.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from ablate.spikes.robust import MAD_TO_SIGMA, mad, median

__all__ = ["OutlierRule", "StopRule", "UpdateCap"]


class Window:
    """Mean and standard deviation (ddof 1) of the last finite values, from half a window on."""

    def __init__(self, size: int) -> None:
        self.values: deque[float] = deque(maxlen=size)

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self.values.append(value)

    def limit(self, sigmas: float) -> float:
        """Mean + `sigmas` std; infinity while too few values are held."""
        n = len(self.values)
        if n < max(2, (self.values.maxlen or 0) // 2):
            return math.inf
        mean = sum(self.values) / n
        squares = sum([(v - mean) * (v - mean) for v in self.values])
        limit = mean + sigmas * math.sqrt(squares / (n - 1))
        return limit if math.isfinite(limit) else math.inf


class OutlierRule:
    """OLMo-core's SkipStepOptimizer, but robust to values that are not finite.

    A step is out where loss or gradient norm is over mean + 6 std of the last 128. As published,
    finite outliers stay in the window, so that a run can move to a new level. What is not finite is
    out and never enters it (published, one NaN skips the next 128 steps).
    """

    def __init__(self, window: int = 128, sigmas: float = 6.0) -> None:
        self.sigmas = sigmas
        self.loss, self.norm = Window(window), Window(window)

    def judge(self, loss: float, norm: float) -> str | None:
        """Why this step is out, or None; takes the values in."""
        out = None
        if not (math.isfinite(loss) and math.isfinite(norm)):
            out = "not finite"
        elif loss > self.loss.limit(self.sigmas):
            out = "loss"
        elif norm > self.norm.limit(self.sigmas):
            out = "gradient norm"
        self.loss.add(loss)
        self.norm.add(norm)
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"loss": list(self.loss.values), "norm": list(self.norm.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("loss", "norm"):
            window: Window = getattr(self, name)
            window.values = deque(state[name], maxlen=window.values.maxlen)


class UpdateCap:
    """Levanter's clip_update_norm: at most mean + 3 std of the last 128 norms before the cap."""

    def __init__(self, window: int = 128, sigmas: float = 3.0) -> None:
        self.sigmas, self.norms = sigmas, Window(window)

    def factor(self, norm: float) -> float:
        """By which an update of this norm is multiplied; 1.0 where it is under the cap."""
        limit = self.norms.limit(self.sigmas)
        self.norms.add(norm)
        return limit / norm if norm > limit else 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"norms": list(self.norms.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.norms.values = deque(state["norms"], maxlen=self.norms.values.maxlen)


BLOCK = 32
LOST = 0.5
"""Share of what was learnt that a diverged run has lost."""
RETURNING = 0.1
"""A run whose excess over its best level fell by this share in half its patience comes back."""


class StopRule:
    """Ends a run that has lost half of what it had learnt for `patience` rows, and stays there.

    Levels are medians of 32 rows. With s the level of the first block and b the lowest since, the
    run is lost where each of the last `patience` rows' levels is over b + (s - b) / 2, and over
    b + 6 sigma. It is coming back, and left alone, where the excess over b of the newer half is a
    tenth lower than that of the older half.
    """

    def __init__(self, patience: int = 400) -> None:
        self.blocks = max(4, -(-patience // BLOCK))
        self.rows: list[float] = []
        self.levels: deque[float] = deque(maxlen=self.blocks)
        self.first: float | None = None
        self.best = math.inf
        self.sigma = 0.0
        """Of the best block, from one-step differences: its slope is no noise."""

    def update(self, loss: float) -> bool:
        """Takes in a row; whether the run is to be ended here."""
        if not math.isfinite(loss):
            return False
        self.rows.append(loss)
        if len(self.rows) < BLOCK:
            return False
        level = median(self.rows)
        moves = [b - a for a, b in pairwise(self.rows)]
        sigma = MAD_TO_SIGMA * mad(moves) / math.sqrt(2)
        self.rows = []
        if self.first is None:
            self.first = level
        self.levels.append(level)
        if level < self.best:
            self.best, self.sigma = level, sigma
        if len(self.levels) < self.blocks:
            return False
        bound = self.best + max(LOST * (self.first - self.best), 6 * self.sigma)
        return min(self.levels) > bound and not self._returning()

    def _returning(self) -> bool:
        levels = list(self.levels)
        half = len(levels) // 2
        older, newer = median(levels[:half]), median(levels[-half:])
        return newer - self.best < (1 - RETURNING) * (older - self.best)

    def run(self, losses: Iterable[float]) -> int | None:
        """The row at which a whole record would have been ended, or None."""
        return next((i for i, loss in enumerate(losses) if self.update(loss)), None)

    def state_dict(self) -> dict[str, Any]:
        names = ("rows", "levels", "first", "best", "sigma")
        state = {name: getattr(self, name) for name in names}
        return {**state, "rows": list(self.rows), "levels": list(self.levels)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.levels = list(state["rows"]), deque(state["levels"], maxlen=self.blocks)
        self.first, self.best, self.sigma = state["first"], state["best"], state["sigma"]
