"""Which settings of the foundation layer's mechanisms make sense. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.config.imports import is_import_path
from ablate.config.typed import closest, require
from ablate.errors import ConfigError
from ablate.model.widths import resolved

if TYPE_CHECKING:
    from ablate.model.config import ModelConfig

__all__ = ["check_foundation"]

CHOICES = {
    "norm_noise_at": ("before", "after"),
    "norm_noise_schedule": ("constant", "linear"),
    "norm_grad_clip_by": ("value", "norm"),
    "width_match": ("params", "flops", "none"),
}


def check_foundation(c: ModelConfig) -> None:
    """Raises ConfigError for the first thing that is out of range, unknown or without effect."""
    for name, known in CHOICES.items():
        value = getattr(c, name)
        if value not in known:
            reason = "must be one of " + ", ".join(known)
            raise ConfigError(f"model.{name}", value, reason, closest(value, known, listed=True))
    require(c.norm_noise >= 0, "model.norm_noise", c.norm_noise, "must not be negative")
    v = c.norm_grad_clip
    remedy = "Set it to null to switch it off"
    require(v is None or v > 0, "model.norm_grad_clip", v, "must be greater than 0", remedy)
    _check_affine(c)
    _check_scope(c)
    _check_widths(c)


def _check_affine(c: ModelConfig) -> None:
    k, field = c.norm_segments, "model.norm_segments"
    if k is not None:
        reason = "divides a scale and shift that layer_norm_with_affine=false leaves out"
        require(c.layer_norm_with_affine, field, k, reason, "Set it to null")
        require(k >= 1, field, k, "must be at least 1", "1 is one scale for all features")
        reason = f"does not divide the width {c.d_model} into equal groups"
        require(c.d_model % k == 0, field, k, reason, "Choose a divisor")
        reason = f"is one group for each of the {c.d_model} features"
        require(k < c.d_model, field, k, reason, "Set it to null, which means that")
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
    reason = "confines noise and taper, and there is neither (norm_noise=0, width_taper=1)"
    used = c.norm_noise > 0 or c.width_taper != 1
    require(used, field, k, reason, "Set it to null, or use norm=noisy or width=tapered")
    whole = c.width_taper != 1 and k in (0, c.n_layers)
    reason = "leaves no layer of another width" if k else "leaves no block below the step in width"
    require(not whole, field, k, reason, f"Choose 1 to {c.n_layers - 1}")
    bare = c.norm_noise > 0 and k == 0 and not c.embedding_layer_norm
    reason = "leaves no norm with noise: the embedding has none (embedding_layer_norm is false)"
    require(not bare, field, k, reason, "Take in at least one block")


def _check_widths(c: ModelConfig) -> None:
    taper, widths = c.width_taper, c.layer_widths
    ok = 0 < taper < float("inf")
    require(ok, "model.width_taper", taper, "must be greater than 0", "1 is a uniform width")
    v = c.width_segments
    require(v >= 2, "model.width_segments", v, "must be at least 2", "width=uniform is one")
    if taper == 1 and widths is None:
        return
    field, value = ("model.layer_widths", widths) if taper == 1 else ("model.width_taper", taper)
    reason = f"changes the width, and position={c.position_scheme} of one's own knows one only"
    remedy = "Choose a position scheme of ours, or width=uniform"
    require(not is_import_path(c.position_scheme), field, value, reason, remedy)
    if widths is not None:
        reason = f"contradicts width_taper={taper:g}"
        require(taper == 1, "model.layer_widths", widths, reason, "Set one of them to its default")
        _check_written_out(c, widths)
        return
    reason = "needs two layers at least, and n_layers is 1"
    require(c.n_layers > 1, "model.width_taper", taper, reason, "Set it to 1")
    resolved(c)


def _check_written_out(c: ModelConfig, widths: list[int]) -> None:
    reason = f"names {len(widths)} layers, and n_layers is {c.n_layers}"
    require(len(widths) == c.n_layers, "model.layer_widths", widths, reason, "One width a layer")
    even = c.position_scheme == "rope"
    unit = c.n_heads * (2 if even else 1)
    for i, width in enumerate(widths):
        field = f"model.layer_widths[{i}]"
        reason = f"must be a multiple of {'2 x ' if even else ''}n_heads={c.n_heads}"
        require(width > 0 and width % unit == 0, field, width, reason)
        k = c.norm_segments
        reason = f"is not divided by norm_segments={k} into equal groups"
        require(k is None or (width % k == 0 and width > k), field, width, reason)
    odd = c.position_scheme in ("sinusoidal", "hybrid") and widths[0] % 2
    reason = f"is the embedding's width, which position={c.position_scheme} needs even"
    require(not odd, "model.layer_widths[0]", widths[0], reason)
