"""What the next loss should be, and how far it usually strays: from accepted rows only.

    forecast = median of the newest 16 + 8.5 x their slope against the 16 before, if that falls
    sigma    = 1.4826 x MAD of the last 128 one-step residuals, renewed every 8 rows

In the first 256 rows a second, local pair competes, and whichever has the smaller sigma judges: the
medians of the newest four rows and of the four before, extrapolated, against its last 24 residuals.
It follows the steep start, where the long windows are blind; later it is the noisier of the two.

There is no upward extrapolation: a rising loss is what is being looked for. The floor of sigma is
the quantum of the losses, not a share of their level, so detection is invariant to shifts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import islice
from typing import Any

from ablate.spikes.robust import MAD_TO_SIGMA, mad, median, middle, quantum

__all__ = ["AHEAD", "EARLY", "HALF", "REFRESH", "WARMUP", "WINDOW", "Baseline"]

HALF = 16
WINDOW = 128
REFRESH = 8
WARMUP = 24
"""Rows before anything is judged, from the start or after a break."""
EARLY, QUARTER, LOCAL = 256, 4, 24
DIP = 6.0
AHEAD = (HALF + 1) / 2
"""From the middle of the newest 16 rows to the next row."""


class Baseline:
    """Forecast and sigma of one series; `accept` adds a row."""

    def __init__(self) -> None:
        self.values: deque[float] = deque(maxlen=WINDOW)
        self.residuals: deque[float] = deque(maxlen=WINDOW)
        self.count = 0
        """Accepted rows since the last break."""
        self.forecast = 0.0
        self.lagged = 0.0
        """Median of the rows 17 to 32 back: what a shift has not reached yet."""
        self.sigma = 0.0
        self.quantum = 0.0
        self.nearby: deque[float] = deque(maxlen=LOCAL)
        """Residuals of the local forecast."""
        self.local: tuple[float, float] | None = None
        """(bias, sigma) of the local forecast while it is the better one."""
        self._new: list[float] = []
        self._old: list[float] = []

    @property
    def ready(self) -> bool:
        return self.count >= WARMUP

    def accept(self, value: float) -> None:
        """Lets a row in; the residual is against the forecast that was made for it."""
        if self.count >= HALF:
            self.residuals.append(value - self.forecast)
        if 2 * QUARTER <= self.count < EARLY:
            residual = value - self.local_forecast()
            self.nearby.append(residual)
            if self.local is not None and residual < self.local[0] - DIP * self.local[1]:
                self.local = None  # a dip would make the next rows look high
        self._push(value)
        self.count += 1
        if self.count >= EARLY:
            self.local = None
        if self.count % REFRESH == 0 and len(self.residuals) >= REFRESH:
            self._measure()

    def _push(self, value: float) -> None:
        values, new, old = self.values, self._new, self._old
        n = len(values)
        if n >= HALF:
            leaving = values[n - HALF]
            del new[bisect_left(new, leaving)]
            if n >= 2 * HALF:
                del old[bisect_left(old, values[n - 2 * HALF])]
            insort(old, leaving)
        insort(new, value)
        values.append(value)
        self._foresee()

    def _foresee(self) -> None:
        new, old = self._new, self._old
        m = middle(new)
        if len(old) < HALF:
            self.forecast = self.lagged = m
            return
        self.lagged = middle(old)
        slope = (m - self.lagged) / HALF
        self.forecast = m + AHEAD * slope if slope < 0 else m

    def _measure(self) -> None:
        step = quantum(self.values)
        if step > 0:
            self.quantum = step
        sigma = MAD_TO_SIGMA * mad(self.residuals)
        if sigma < step:
            sigma = step
        self.sigma = sigma if sigma > 0 else self.quantum

        self.local = None
        if len(self.nearby) >= 2 * REFRESH and self.count < EARLY:
            near = max(MAD_TO_SIGMA * mad(self.nearby), step)
            bias = median(self.nearby)
            dip = min(list(self.nearby)[-REFRESH:]) < bias - DIP * near
            first = len(self.residuals) < 2 * REFRESH
            if near > 0 and not dip and (near < self.sigma or first):
                self.local = (bias, near)

    def local_forecast(self) -> float:
        """The next row from the newest eight, along a falling line."""
        newest = list(islice(reversed(self.values), 2 * QUARTER))
        new, old = median(newest[:QUARTER]), median(newest[QUARTER:])
        slope = (new - old) / QUARTER
        return new + 0.5 * (QUARTER + 1) * slope if slope < 0 else new

    def expected(self) -> tuple[float, float]:
        """(level, sigma) against which the next row is judged."""
        if self.local is not None:
            return self.local_forecast() + self.local[0], self.local[1]
        return self.forecast, self.sigma

    def score(self, value: float) -> float:
        """How many sigma above the forecast. 0 while sigma is unknown (all rows were equal)."""
        level, sigma = self.expected()
        return (value - level) / sigma if sigma > 0 else 0.0

    def restart(self, values: list[float], *, count: int | None = None) -> None:
        """Begins anew from these rows (oldest first); the sigma is kept."""
        self.values.clear()
        self._new, self._old = [], []
        if len(values) < 2 * HALF:
            for v in values:
                self._push(v)
        else:
            self.values.extend(values)
            self._new, self._old = sorted(values[-HALF:]), sorted(values[-2 * HALF : -HALF])
            self._foresee()
        self.count = len(values) if count is None else count

    def jump(
        self,
        values: list[float],
        residuals: list[float],
        *,
        count: int,
        sigma: float,
        quantum: float,
    ) -> None:
        """To where `accept` would have come, in a stretch of rows that was judged as a whole."""
        self.restart(values, count=count)
        self.residuals = deque(residuals, maxlen=WINDOW)
        self.sigma = sigma
        if quantum > 0:
            self.quantum = quantum

    def level(self) -> float:
        return median(self._new) if self._new else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": list(self.values),
            "residuals": list(self.residuals),
            "count": self.count,
            "forecast": self.forecast,
            "sigma": self.sigma,
            "quantum": self.quantum,
            "nearby": list(self.nearby),
            "local": self.local,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restart(state["values"], count=state["count"])
        self.residuals = deque(state["residuals"], maxlen=WINDOW)
        self.forecast = state["forecast"]
        self.nearby = deque(state["nearby"], maxlen=LOCAL)
        self.local = None if state["local"] is None else (state["local"][0], state["local"][1])
        self.sigma, self.quantum = state["sigma"], state["quantum"]
