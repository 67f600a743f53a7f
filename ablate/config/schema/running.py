"""Who watches a trial: no part of its identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ablate.config.typed import check_types

__all__ = ["TrackConfig"]


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    name: Literal["local", "wandb"] = "local"
    """Local files are always written; wandb mirrors them."""
    project: str = "ablate"
    entity: str | None = None
    mode: Literal["auto", "online", "offline"] = "auto"
    """auto: online where an API key is set, else offline."""
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_types(self, "track")
