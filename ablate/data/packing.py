"""Best-fit decreasing: the longest first, each into the fullest row that still has room."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

__all__ = ["pack"]


def pack(lengths: Int64[np.ndarray, "n"], width: int) -> list[list[int]]:
    """Which pieces share a row of `width` tokens; every piece is in exactly one.

    Rows are found by the room that they have left, so it takes about n steps, and never more rows
    than 11/9 of the fewest possible and one (Johnson 1973).

    Args:
        lengths: of the pieces, none above `width`.
        width: of a row.
    """
    rows: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(width + 1)]
    open_ = np.zeros(width + 1, dtype=bool)
    for piece in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[piece])
        room = size + int(open_[size:].argmax())
        if open_[room]:
            row = by_room[room].pop()
            open_[room] = bool(by_room[room])
        else:
            row, room = len(rows), width
            rows.append([])
        rows[row].append(piece)
        if left := room - size:
            by_room[left].append(row)
            open_[left] = True
    return rows
