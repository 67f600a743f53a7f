"""The steps of a record: its stride, gaps, and rewinds after a resume."""

from __future__ import annotations

from collections import deque
from typing import Any

from ablate.spikes.robust import median

__all__ = ["GAP", "Record"]

STRIDES = 8
GAP = 10
"""A jump over so many usual strides is a gap."""
KEEP = 64
"""After a gap of up to so many usual strides the baseline is still good."""


class Record:
    """Reads the steps one at a time; `read` says what is peculiar about the next."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.usual = 1
        self.strides: deque[int] = deque(maxlen=STRIDES)

    def read(self, step: int) -> tuple[str | None, int]:
        """(gap, jump, rewind or None; steps since the row before, at least 1)."""
        last, self.last = self.last, step
        if last is None:
            return None, 1
        stride = step - last
        if stride < 0:
            return "rewind", 1
        stride = max(1, stride)
        known = len(self.strides) == STRIDES
        if known and stride >= GAP * self.usual:
            what = "gap" if stride <= KEEP * self.usual else "jump"
            self.strides.clear()
            return what, self.usual
        self.strides.append(stride)
        if len(self.strides) == STRIDES and stride != self.usual:
            self.usual = max(1, int(median(self.strides)))
        elif not known:
            self.usual = stride
        return None, stride

    @property
    def is_regular(self) -> bool:
        """Whether rows at the usual stride change nothing here but the last step."""
        return len(self.strides) == STRIDES and set(self.strides) == {self.usual}

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last, "usual": self.usual, "strides": list(self.strides)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last, self.usual = state["last"], state["usual"]
        self.strides = deque(state["strides"], maxlen=STRIDES)
