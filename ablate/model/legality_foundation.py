"""Which settings of the foundation layer's mechanisms make sense. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.config.typed import closest, require
from ablate.errors import ConfigError

if TYPE_CHECKING:
    from ablate.model.config import ModelConfig

__all__ = ["check_foundation"]

CHOICES = {
    "norm_noise_at": ("before", "after"),
    "norm_noise_schedule": ("constant", "linear"),
    "norm_grad_clip_by": ("value", "norm"),
}


def check_foundation(c: ModelConfig) -> None:
    """Raises ConfigError for the first thing that is out of range, unknown or without effect."""
    for name, known in CHOICES.items():
        value = getattr(c, name)
        if value not in known:
            reason = "must be one of " + ", ".join(known)
            raise ConfigError(f"model.{name}", value, reason, closest(value, known))
    require(c.norm_noise >= 0, "model.norm_noise", c.norm_noise, "must not be negative")
    v = c.norm_grad_clip
    remedy = "Set it to null to switch it off"
    require(v is None or v > 0, "model.norm_grad_clip", v, "must be greater than 0", remedy)
    _check_affine(c)
    _check_scope(c)


def _check_affine(c: ModelConfig) -> None:
    k, field = c.norm_segments, "model.norm_segments"
    if k is not None:
        reason = "divides a scale and shift that layer_norm_with_affine=false leaves out"
        require(c.layer_norm_with_affine, field, k, reason, "Set it to null")
        require(k >= 1, field, k, "must be at least 1", "1 is one scale for all features")
        for width in {c.d_model}:
            reason = f"does not divide the width {width} into equal groups"
            require(width % k == 0, field, k, reason, "Choose a divisor")
            reason = f"is one group for each of the {width} features"
            require(k < width, field, k, reason, "Set it to null, which means that")
    if not c.layer_norm_scale:
        field, remedy = "model.layer_norm_scale", "Set layer_norm_with_affine=false for neither"
        reason = "switches the scale off, and layer_norm_with_affine=false leaves it out already"
        require(c.layer_norm_with_affine, field, False, reason, "Set it to true")
        reason = "switches the scale off, and norms have no shift either (bias_for_layer_norm)"
        require(c.norm_bias, field, False, reason, remedy)


def _check_scope(c: ModelConfig) -> None:
    k, field = c.foundation_layers, "model.foundation_layers"
    if k is None:
        return
    require(k >= 0, field, k, "must not be negative", "0 is the embedding alone")
    require(k <= c.n_layers, field, k, f"exceeds n_layers={c.n_layers}", "Null is all of them")
    reason = "confines the norms' noise, and norm_noise is 0"
    require(c.norm_noise > 0, field, k, reason, "Set it to null, or use norm=noisy")
    bare = k == 0 and not c.embedding_layer_norm
    reason = "leaves no norm with noise: the embedding has none (embedding_layer_norm is false)"
    require(not bare, field, k, reason, "Take in at least one block")
