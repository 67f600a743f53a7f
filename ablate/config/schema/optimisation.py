"""Optimiser, schedule and clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ablate.config.imports import require_known
from ablate.config.schema.amount import amount
from ablate.config.typed import check_types, require

__all__ = ["ClipConfig", "OptimConfig", "ScheduleConfig"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    name: str = "adamw"
    """adamw, lion, muon, or an import path."""
    lr: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decay_norm_and_bias: bool = False
    decay_embeddings: bool = False
    momentum: float = 0.95
    """Of Muon's matrices; its other parameters follow AdamW with `betas`."""
    norm_scale_lr: float = 1.0
    """Learning rate of the norms' scales, in units of everybody's; 0 keeps them at 1."""
    norm_shift_lr: float = 1.0
    """Learning rate of the norms' shifts, likewise; 0 keeps them at 0."""

    def __post_init__(self) -> None:
        check_types(self, "optim")
        require_known("optim.name", self.name, ("adamw", "lion", "muon"))
        ok = self.lr > 0 and math.isfinite(self.lr)
        require(ok, "optim.lr", self.lr, "must be greater than 0")
        require(len(self.betas) == 2, "optim.betas", list(self.betas), "must be two numbers")
        for b in self.betas:
            require(0 <= b < 1, "optim.betas", list(self.betas), "must lie in [0, 1)")
        require(self.eps > 0, "optim.eps", self.eps, "must be greater than 0")
        decay = self.weight_decay
        require(decay >= 0, "optim.weight_decay", decay, "must not be negative")
        for name in ("norm_scale_lr", "norm_shift_lr"):
            v = getattr(self, name)
            ok = v >= 0 and math.isfinite(v)
            require(ok, f"optim.{name}", v, "must be a number from 0", "0 keeps what it started as")
        require(0 <= self.momentum < 1, "optim.momentum", self.momentum, "must lie in [0, 1)")


WITHOUT_WARMUP = ("constant", "exponential", "composable", "sequential")
"""Schedules that do not read `warmup`; the stages of the last two have their own."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    name: str = "cosine_with_warmup"
    """See `ablate.train.schedule`: OLMo's and OLMo-core's schedules by their names, or an import
    path.
    """
    warmup: str | int | float = 0.05
    """A fraction ("5%" or 0.05), a number of steps (100), or of tokens ("2M tokens")."""
    warmup_min_lr: float | None = None
    """Where warm-up starts; null: a tenth of the peak (OLMo); OLMo-core starts at 0."""
    alpha_f: float = 0.1
    """Final learning rate as a share of the peak."""
    t_max: int | None = None
    """Steps at which the decay ends; null: train.steps."""
    decay: str | int | float = 0.1
    """Length of the final decay of wsd and of the schedules with a tail, as `warmup`."""
    exponent: float = -0.51
    """Of power_lr."""
    lr_min: float | None = None
    """Where exponential starts (null: alpha_f times the peak), and where tails end (null: 0)."""
    periods: list[int] | None = None
    """Steps at which each period of wsds ends; null: one period."""
    period_lr_multipliers: list[float] | None = None
    """Peak of each period of wsds as a share of optim.lr; null: 1."""
    stages: list[dict[str, Any]] | None = None
    """Parts of composable and sequential (see `ablate.train.stages`)."""
    override_decay: dict[str, Any] | None = None
    """A decay that overrides the schedule: start, duration, shape, end_lr or end_lr_fraction."""
    foundation_layers: int | None = None
    """Warm-up of the embedding and so many of the lowest blocks only: all else begins at the rate
    that warm-up ends at. Null: everything warms up.
    """

    def __post_init__(self) -> None:
        check_types(self, "schedule")
        require(0 <= self.alpha_f <= 1, "schedule.alpha_f", self.alpha_f, "must lie in [0, 1]")
        v = self.t_max
        require(v is None or v >= 1, "schedule.t_max", v, "must be at least 1, or null")
        for name in ("warmup_min_lr", "lr_min"):
            v = getattr(self, name)
            require(v is None or v >= 0, f"schedule.{name}", v, "must not be negative")
        for name in ("warmup", "decay"):
            amount(f"schedule.{name}", getattr(self, name))
        if self.foundation_layers is not None:
            self._check_foundation(self.foundation_layers)

    def _check_foundation(self, layers: int) -> None:
        field = "schedule.foundation_layers"
        require(layers >= 0, field, layers, "must not be negative", "0 is the embedding alone")
        cold = self.name in WITHOUT_WARMUP
        reason = f"confines the warm-up, which schedule.name={self.name} has none of"
        require(not cold, field, layers, reason, "Set it to null, or choose another schedule")
        none = amount("schedule.warmup", self.warmup)[1] == 0
        reason = "confines the warm-up, and schedule.warmup is 0"
        require(not none, field, layers, reason, "Set it to null, or schedule.warmup above 0")


CLIPS = ("none", "norm", "ratio", "value", "percentile", "percentile_history", "agc", "zclip")


@dataclass(frozen=True, kw_only=True)
class ClipConfig:
    name: str = "norm"
    """none, norm (global norm), ratio (each tensor against its own history), value, percentile,
    percentile_history, agc, zclip (see `ablate.train.clip_adaptive`), or an import path.
    """
    max_norm: float = 1.0
    """Of norm; of percentile_history and zclip until they know enough norms."""
    max_ratio: float = 1.05
    max_value: float = 1.0
    percentile: float = 90.0
    """Percent: of this step's largest elements of the tensors (percentile), or of earlier global
    norms (percentile_history).
    """
    history: int = 128
    """percentile_history: steps."""
    agc_ratio: float = 0.01
    """agc: norm of a unit's gradient as a share of the norm of its weights."""
    agc_floor: float = 1e-3
    """agc: weights count as at least this."""
    z_limit: float = 2.5
    """zclip: standard deviations above the mean norm."""
    z_decay: float = 0.97
    """zclip: of the averages, a step."""
    warmup_steps: int = 0
    warmup_factor: float = 1.0
    """The limit is this many times higher during the first `warmup_steps`."""

    def __post_init__(self) -> None:
        check_types(self, "clip")
        require_known("clip.name", self.name, CLIPS)
        for name in (
            "max_norm", "max_ratio", "max_value", "warmup_factor", "agc_ratio", "agc_floor",
            "z_limit",
        ):  # fmt: skip
            v = getattr(self, name)
            require(
                v > 0,
                f"clip.{name}",
                v,
                "must be greater than 0",
                "Set clip=none to switch clipping off",
            )
        v = self.percentile
        require(0 < v <= 100, "clip.percentile", v, "must lie in (0, 100]", "It is in percent")
        require(self.history >= 2, "clip.history", self.history, "must be at least 2 steps")
        require(0 <= self.z_decay < 1, "clip.z_decay", self.z_decay, "must lie in [0, 1)")
        require(
            self.warmup_steps >= 0, "clip.warmup_steps", self.warmup_steps, "must not be negative"
        )
