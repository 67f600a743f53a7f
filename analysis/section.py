"""A table of the report, and what is said of it and of its columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ablate.analysis.material import Material

__all__ = ["Section"]

Plot = Callable[[pd.DataFrame, Material], dict[str, Any] | None]


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str
    title: str
    note: str
    make: Callable[[Material], pd.DataFrame]
    columns: Mapping[str, tuple[str, str]]
    """Column of the frame -> header and format (see `cells`)."""
    plots: tuple[Plot, ...] = field(default=())
    terminal: bool = False
    terms: Mapping[str, str] = field(default_factory=dict)
    """Column -> a sentence on what it says, printed wherever the column is; {level} stands for the
    level of the study's intervals."""

    def said(self, shown: Collection[str], level: str) -> str:
        """The sentences on those of the columns that are shown."""
        return " ".join(t.format(level=level) for c, t in self.terms.items() if c in shown)

    def noted(self, shown: Collection[str], level: str) -> str:
        """The note, and the sentences."""
        return f"{self.note} {self.said(shown, level)}".rstrip()
