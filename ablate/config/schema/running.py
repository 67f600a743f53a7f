"""Where a trial runs and who watches: no part of its identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ablate.config.typed import check_types, require

__all__ = ["ClusterConfig", "TrackConfig"]


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


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    name: Literal["local"] = "local"
    workers: int | None = None
    """Trials at once; null: CPU cores // train.threads (or one a GPU)."""

    def __post_init__(self) -> None:
        check_types(self, "cluster")
        v = self.workers
        require(v is None or v >= 1, "cluster.workers", v, "must be at least 1, or null")
