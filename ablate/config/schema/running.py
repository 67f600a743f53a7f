"""Who watches a trial: no part of its identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ablate.config.typed import check_types, require

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
        for name in ("project", "entity"):
            value = getattr(self, name)
            fits = value is None or (
                value.strip() != "" and len(value) <= 128 and not set(value) & set("/\\#?%:")
            )
            require(
                fits, f"track.{name}", value, "must be 1 to 128 characters without / \\ # ? % and :"
            )
        for tag in self.tags:
            fits = isinstance(tag, str) and 1 <= len(tag) <= 64
            require(fits, "track.tags", self.tags, "tags are texts of 1 to 64 characters")
