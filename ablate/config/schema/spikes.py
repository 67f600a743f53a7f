"""What a trial does about its own loss spikes."""

from __future__ import annotations

from dataclasses import dataclass

from ablate.config.imports import require_known
from ablate.config.typed import check_types, require

__all__ = ["RESPONSES", "SpikesConfig"]

RESPONSES = (
    "observe", "skip_step", "skip_batch", "rewind", "lower_lr", "clip_update", "stop",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SpikesConfig:
    """Detection is always on; a response changes the result, so it is part of the trial."""

    name: str = "observe"
    """One of RESPONSES, or an import path."""
    sigmas: float = 6.0
    """Over mean + so many std: skip_step and skip_batch; clip_update's cap."""
    window: int = 128
    """Steps that mean and std are taken from (the same three)."""
    rewind_steps: int = 100
    """rewind goes back at least so far, at most twice as far."""
    skip_batches: int | None = None
    """Batches that rewind leaves out, from the snapshot on; null: those it had seen, so that the
    data order stays that of the other arms.
    """
    lr_factor: float = 0.5
    """lower_lr multiplies by it at each alarm."""
    lr_steps: int | None = None
    """Steps in which the rate comes back to the schedule; null: never."""
    patience: int = 400
    """stop: steps for which the run must have lost half of what it had learnt."""
    limit: int = 20
    """Rewinds, lowerings, or steps in a row that are not finite, after which no more is done."""

    def __post_init__(self) -> None:
        check_types(self, "spikes")
        require_known("spikes.name", self.name, RESPONSES)
        require(self.sigmas > 0, "spikes.sigmas", self.sigmas, "must be greater than 0")
        for name in ("rewind_steps", "patience", "limit"):
            v = getattr(self, name)
            require(v >= 1, f"spikes.{name}", v, "must be at least 1")
        require(self.window >= 4, "spikes.window", self.window, "must be at least 4")
        v = self.skip_batches
        require(v is None or v >= 0, "spikes.skip_batches", v, "must not be negative, or null")
        v = self.lr_steps
        require(v is None or v >= 1, "spikes.lr_steps", v, "must be at least 1, or null")
        ok = 0 < self.lr_factor < 1
        require(ok, "spikes.lr_factor", self.lr_factor, "must lie between 0 and 1")
