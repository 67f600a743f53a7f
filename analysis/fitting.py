"""Which columns of a table a terminal has room for, and how the others are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

__all__ = ["fitting", "left_out"]

GAP = 2
"""Between two columns."""


def fitting(text: pd.DataFrame, titles: Mapping[str, str], width: int) -> list[str]:
    """The columns that fit, the foremost first.

    Names, in the first column, may be folded down to a third of the width: a number is worth more
    than an unbroken name. One number is shown in any case.

    Args:
        text: a table of strings; the first column holds names.
        titles: of its columns.
        width: of the terminal, in characters.
    """
    needs = {c: max(len(titles[c]), *text[c].str.len()) + GAP for c in text}
    first, *rest = needs
    room = width - min(needs[first], width // 3)
    shown = [first]
    for column in rest:
        room -= needs[column]
        if room < 0 and len(shown) > 1:
            break
        shown.append(column)
    return shown


def left_out(titles: Sequence[str], width: int) -> str:
    """What is said of columns that did not fit; empty where all did."""
    if not titles:
        return ""
    return f"Left out at {width} columns: {', '.join(dict.fromkeys(titles))} (all in the report)."
