"""How many columns a pipe or a file has."""

from __future__ import annotations

import os

__all__ = ["pipe_width"]

PIPE_WIDTH, LEAST = 80, 20


def pipe_width() -> int:
    """80, or as many as COLUMNS says; what is whole in a terminal of that width is whole there."""
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() and int(said) >= LEAST else PIPE_WIDTH
