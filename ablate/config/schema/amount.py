"""Lengths as people write them: a share of the run, steps, or tokens."""

from __future__ import annotations

import re
from typing import Literal

from ablate.config.typed import require
from ablate.errors import ConfigError

__all__ = ["amount"]


def amount(
    name: str, value: str | int | float
) -> tuple[Literal["fraction", "steps", "tokens"], float]:
    """Reads a length: 0.05 or "5%" is a fraction, 100 is steps, "2M tokens" is tokens.

    Raises:
        ConfigError: naming the field `name`.
    """
    remedy = 'Write a fraction ("5%" or 0.05), a number of steps (100) or of tokens ("2M tokens")'
    if isinstance(value, str):
        text = value.strip()
        match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kKMGBT]?)\s*(%|tokens|steps)?", text)
        if not match:
            raise ConfigError(name, value, "cannot be read as a length", remedy)
        try:
            number = float(match[1])
        except ValueError:
            raise ConfigError(name, value, "cannot be read as a length", remedy) from None
        number *= {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}[match[2]]
        if match[3] == "%":
            kind, number = "fraction", number / 100
        elif match[3]:
            kind = match[3]
        else:
            kind = "fraction" if number < 1 and "." in match[1] else "steps"
    else:
        number = float(value)
        kind = "fraction" if isinstance(value, float) and value < 1 else "steps"
    if kind == "fraction":
        require(0 <= number <= 1, name, value, "as a fraction must lie in [0, 1]", remedy)
    require(number >= 0, name, value, "must not be negative", remedy)
    if kind == "steps":
        require(number == int(number), name, value, "as steps must be a whole number", remedy)
    return kind, number  # type: ignore[return-value]
