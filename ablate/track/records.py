"""A wandb run as plain values, wherever it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Record"]

_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(kw_only=True)
class Record:
    id: str
    name: str = ""
    group: str | None = None
    job_type: str | None = None
    project: str | None = None
    tags: list[str] = field(default_factory=list)
    state: str = "crashed"
    """finished, failed, crashed, running, preempted, ... in wandb's words."""
    config: dict[str, Any] = field(default_factory=dict)
    """Nested, as it was given."""
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Every row that was logged, in order; never a sample."""

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(_plain(row))

    def add_summary(self, update: Mapping[str, Any]) -> None:
        self.summary.update(_plain(update))


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Sorted, for wandb's client gives the keys in any order; without wandb's own (but `_step`),
    and with the numbers that JSON lacks.
    """
    kept = {k: row[k] for k in sorted(row) if not k.startswith("_") or k == "_step"}
    return {k: _NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in kept.items()}
