"""A table's numbers as text, by the formats of its section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.display import fixed, si

__all__ = ["TEXT", "cells"]

TEXT = ("s",)
"""Formats that stand on the left."""


def cells(frame: pd.DataFrame, columns: Mapping[str, tuple[str, str]], digits: int) -> pd.DataFrame:
    """Strings, a column each of `columns` that the frame has and that says something.

    Formats: s text, d whole number, i rounded to whole, m and +m in digits of the metric (signed),
    g three digits, p of a test, % share (+% signed), x ratio, si 1.2M.

    Args:
        frame: a table.
        columns: column -> header and format.
        digits: decimals of the metric.
    """
    made: dict[str, list[str]] = {}
    for name, (_, form) in columns.items():
        if name in frame:
            text = [_cell(v, form, digits) for v in frame[name].tolist()]
            if any(text):
                made[name] = text
    return pd.DataFrame(made, index=frame.index)


def _cell(value: Any, form: str, digits: int) -> str:
    if form == "s":
        if isinstance(value, bool | np.bool_):
            return "yes" if value else ""
        return "" if value is None or value != value else str(value)
    if value is None or value is pd.NA or not np.isfinite(value):
        return ""
    value = float(value)
    if form == "p":
        return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
    return {
        "d": lambda: fixed(value, 0),
        "i": lambda: f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}",
        "m": lambda: fixed(value, digits),
        "+m": lambda: fixed(value, digits, sign=True),
        "g": lambda: f"{value:.3g}",
        "%": lambda: f"{fixed(100 * value, 0)} %",
        "+%": lambda: f"{fixed(100 * value, 0, sign=True)} %",
        "x": lambda: f"{fixed(value, 2)}×",
        "si": lambda: si(value),
    }[form]()
