"""Numbers of a row that the device knows before the host does, fetched for several rows at once.

Asking for a number waits until the device has computed it, and with it all that was queued before.
What no decision needs stays on the device until its row is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Span", "settle"]


class Span:
    """Seconds that a device took between pairs of its own events."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self.pairs = pairs

    def seconds(self) -> float:
        """Once all events have happened; waits for the last where they have not."""
        self.pairs[-1][1].synchronize()
        return sum(start.elapsed_time(end) for start, end in self.pairs) / 1e3


def settle(rows: Sequence[dict[str, Any]]) -> None:
    """Puts the host's numbers in place of scalars and spans that lie on the device: one wait."""
    places = [(row, key) for row in rows for key, value in row.items() if isinstance(value, Tensor)]
    if places:
        values = torch.stack([row[key] for row, key in places]).tolist()
        for (row, key), value in zip(places, values, strict=True):
            row[key] = value
    for row in rows:
        for key, value in row.items():
            if isinstance(value, Span):
                row[key] = value.seconds()
