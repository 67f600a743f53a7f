"""What the first events of two attempts say of the machinery: what changes the bits of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["other_machinery"]

NAMES = {
    "device": "device",
    "instructions": "CPU instructions",
    "attention": "attention",
    "compiled": "compiled",
}
"""Fields of a `start` or `resume` event, and what they are called."""


def other_machinery(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """How the second attempt computes otherwise than the first; empty where it does not, or where
    nobody noted it.

    Args:
        before: the `start` or `resume` event of an attempt.
        after: that of the one that went on from it.
    """
    said = []
    for field, name in NAMES.items():
        old, new = (_word(event.get(field)) for event in (before, after))
        if old and new and old != new:
            said.append(f"{name} {new}, before {old}")
    return "; ".join(said)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):  # kernels, with the reason for each
        return "+".join(value)
    return value if isinstance(value, str) else ""
