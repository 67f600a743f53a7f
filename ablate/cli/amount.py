"""Large numbers in few characters."""

from __future__ import annotations

__all__ = ["amount"]

SUFFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float) -> str:
    """1234567 as 1.23M; FLOPs and tokens need no more digits."""
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:g}"
