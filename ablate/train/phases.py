"""Where the time of a step goes: data, forward, backward, optimiser; and what lies between steps.

On a CPU the host's clock tells. A GPU works behind the host, so there events are put into its own
queue, and read when the row is written, by which time they have happened.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch

from ablate.train.later import Span

__all__ = ["PHASES", "Phases"]

PHASES = ("data", "forward", "backward", "optimiser", "record")
"""Of a row, as `time/<phase>`, in seconds. `optimiser` has norms, clipping and the update in it;
`record` is what came before the step, since the last one: rows, checkpoints, validation."""


class Phases:
    """A stopwatch that is told what has just ended."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._seconds: dict[str, float] = defaultdict(float)
        self._spans: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self._host: float | None = None
        self._device: Any = None

    def begin(self) -> None:
        """Of a step. What has passed since the last one was spent on the record."""
        now = time.perf_counter()
        self._seconds.clear()
        self._spans.clear()
        self._seconds["record"] = 0.0 if self._host is None else now - self._host
        self._host, self._device = now, self._event()

    def end(self, phase: str) -> None:
        """What has passed since the last call was this."""
        now, event = time.perf_counter(), self._event()
        if event is None or phase == "data":  # batches are made by the host
            self._seconds[phase] += now - (self._host or now)
        else:
            self._spans[phase].append((self._device, event))
        self._host, self._device = now, event

    def columns(self) -> dict[str, Any]:
        """Of the row; on a GPU numbers that are still to be had (`later.settle`)."""
        seconds = {f"time/{k}": round(v, 7) for k, v in self._seconds.items()}
        return seconds | {f"time/{k}": Span(v) for k, v in self._spans.items()}

    def _event(self) -> Any:
        if self._cuda is None:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._cuda))
        return event
