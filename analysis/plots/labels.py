"""Names beside points, none over another: each goes to the first free side of its point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["place_labels"]

_WIDTH, _HEIGHT = 760.0, 320.0
"""Pixels of the plot that are reckoned with; on a narrower screen names may still meet."""
_LETTER, _LINE, _GAP = 7.0, 16.0, 8.0
"""Pixels of a letter, of a line, and between a point's middle and its name."""
_SIDES = {
    "top center": (0.0, 1.0),
    "bottom center": (0.0, -1.0),
    "middle right": (1.0, 0.0),
    "middle left": (-1.0, 0.0),
    "top right": (1.0, 1.0),
    "bottom right": (1.0, -1.0),
    "top left": (-1.0, 1.0),
    "bottom left": (-1.0, -1.0),
}
"""Plotly's words -> where the name lies."""

Box = tuple[float, float, float, float]


def place_labels(
    x: Sequence[float], y: Sequence[float], names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """(names, sides) of the points in their order; a name for which no side is free is empty, and
    shows when the point is touched.
    """
    across, up = _pixels(x, _WIDTH), _pixels(y, _HEIGHT)
    points = [(a - _GAP, b - _GAP, a + _GAP, b + _GAP) for a, b in zip(across, up, strict=True)]
    taken: list[Box] = []
    shown, sides = [], []
    for i, name in enumerate(names):
        others = [*points[:i], *points[i + 1 :], *taken]
        boxes = ((side, _box(across[i], up[i], name, way)) for side, way in _SIDES.items())
        free = [(side, box) for side, box in boxes if not any(_meet(box, o) for o in others)]
        # What stands over the edge is cut there; where no side is within, a name may.
        within = (side for side in free if side[1][0] >= 0 and side[1][2] <= _WIDTH)
        found = next(within, free[0] if free else None)
        shown.append(name if found else "")
        sides.append(found[0] if found else "top center")
        taken += [found[1]] if found else []
    return shown, sides


def _pixels(values: Sequence[float], length: float) -> list[float]:
    known = np.asarray(values, dtype=float)
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    if not high > low:
        return [length / 2] * len(known)
    return ((known - low) / (high - low) * 0.9 * length + 0.05 * length).tolist()


def _box(x: float, y: float, name: str, way: tuple[float, float]) -> Box:
    half = _LETTER * len(name) / 2
    x, y = x + way[0] * (half + _GAP), y + way[1] * (_LINE / 2 + _GAP)
    return x - half, y - _LINE / 2, x + half, y + _LINE / 2


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
