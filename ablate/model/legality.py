"""Which model configurations make sense. Every refusal names field, value and remedy.

Upstream accepts several of these combinations silently, or fails in the first forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.config.imports import is_import_path, unknown
from ablate.config.typed import require
from ablate.errors import ConfigError
from ablate.model.names import (
    ACTIVATIONS,
    ATTENTION_BACKENDS,
    BLOCKS,
    INITS,
    NORMS,
    POSITIONS,
)

if TYPE_CHECKING:
    from ablate.model.config import ModelConfig

__all__ = ["check"]

OURS_ALONE = ("block_type", "attention_backend")
"""What takes no import path."""


def check(c: ModelConfig) -> None:
    """Raises ConfigError for the first thing that is out of range, unknown or contradictory."""
    _check_sizes(c)
    _check_names(c)
    _check_ranges(c)
    _check_combinations(c)


def _check_sizes(c: ModelConfig) -> None:
    sizes = ("d_model", "n_heads", "n_layers", "mlp_ratio", "max_sequence_length", "vocab_size")
    for name in sizes:
        value = getattr(c, name)
        require(value > 0, f"model.{name}", value, "must be at least 1")
    v = c.mlp_chunk
    require(v >= 0, "model.mlp_chunk", v, "must not be negative", "0: all positions at once")
    remedy = f"Choose a multiple of n_heads={c.n_heads}"
    require(
        c.d_model % c.n_heads == 0,
        "model.d_model",
        c.d_model,
        "is not a multiple of n_heads",
        remedy,
    )
    if c.n_kv_heads is not None:
        kv, field = c.n_kv_heads, "model.n_kv_heads"
        require(kv > 0, field, kv, "must be at least 1")
        require(c.n_heads % kv == 0, field, kv, f"does not divide n_heads={c.n_heads}")
    if c.multi_query_attention is not None and c.n_kv_heads is not None:
        agreed = (c.n_kv_heads == 1) if c.multi_query_attention else (c.n_kv_heads == c.n_heads)
        require(
            agreed,
            "model.multi_query_attention",
            c.multi_query_attention,
            f"contradicts n_kv_heads={c.n_kv_heads}",
            "Set n_kv_heads alone; multi_query_attention is deprecated",
        )
    if c.mlp_hidden_size is not None:
        require(
            c.mlp_hidden_size > 0, "model.mlp_hidden_size", c.mlp_hidden_size, "must be at least 1"
        )
    if c.is_gated:
        name = "mlp_hidden_size" if c.mlp_hidden_size is not None else "mlp_ratio"
        reason = (
            f"{c.activation_type} halves the MLP width, which must be even (it is {c.hidden_size})"
        )
        require(c.hidden_size % 2 == 0, f"model.{name}", getattr(c, name), reason)
    g = c.block_group_size
    require(
        1 <= g <= c.n_layers and c.n_layers % g == 0,
        "model.block_group_size",
        g,
        f"must divide n_layers={c.n_layers}",
    )
    rows = c.embedding_size
    require(
        rows is None or rows >= c.vocab_size,
        "model.embedding_size",
        rows,
        f"has fewer rows than vocab_size={c.vocab_size}",
        "Set it to null, or to vocab_size rounded up to a multiple of 128",
    )


def _check_names(c: ModelConfig) -> None:
    tables = {
        "activation_type": ACTIVATIONS,
        "layer_norm_type": NORMS,
        "position": (*POSITIONS, "rope", "alibi"),
        "init_fn": INITS,
        "block_type": BLOCKS,
        "attention_backend": ATTENTION_BACKENDS,
    }
    for name, known in tables.items():
        value = getattr(c, name)
        if value is None or value in known:
            continue
        if is_import_path(value) and name not in OURS_ALONE:
            continue
        if name == "init_fn" and value in ("kaiming_normal", "fan_in"):
            reason = (
                "is named by OLMo but was never implemented there (it raises in reset_parameters)"
            )
            raise ConfigError("model.init_fn", value, reason, "Known: " + ", ".join(INITS))
        raise unknown(f"model.{name}", value, known, own=name not in OURS_ALONE)


def _check_ranges(c: ModelConfig) -> None:
    for name in ("attention_dropout", "residual_dropout", "embedding_dropout"):
        value = getattr(c, name)
        require(0 <= value < 1, f"model.{name}", value, "must lie in [0, 1)")
    for name in (
        "clip_qkv",
        "alibi_bias_max",
        "rope_theta",
        "layer_norm_eps",
        "init_cutoff_factor",
        "sliding_window",
        "yarn_original_length",
        "yarn_beta_slow",
        "relative_num_buckets",
        "hybrid_amplitude",
        "hybrid_learned_std",
    ):
        value = getattr(c, name)
        require(value is None or value > 0, f"model.{name}", value, "must be greater than 0")
    for name in ("init_std", "emb_init_std"):
        value = getattr(c, name)
        require(value is None or value >= 0, f"model.{name}", value, "must not be negative")
    for name in ("eos_token_id", "pad_token_id"):
        value = getattr(c, name)
        rows = c.embedding_rows
        require(
            0 <= value < rows,
            f"model.{name}",
            value,
            f"lies outside the {rows} rows of the embedding",
        )
    for i, window in enumerate(c.sliding_window_pattern or []):
        field = f"model.sliding_window_pattern[{i}]"
        require(
            window == -1 or window > 0, field, window, "must be a window, or -1 for full attention"
        )
    require(
        c.sliding_window_pattern != [],
        "model.sliding_window_pattern",
        "[]",
        "is empty",
        "Set it to null",
    )
    require(
        c.relative_max_distance > c.relative_num_buckets // 2,
        "model.relative_max_distance",
        c.relative_max_distance,
        "must exceed half of relative_num_buckets",
    )
    if c.yarn_factor is not None:
        require(c.yarn_factor >= 1, "model.yarn_factor", c.yarn_factor, "must be at least 1")
        require(
            c.yarn_beta_fast > c.yarn_beta_slow,
            "model.yarn_beta_fast",
            c.yarn_beta_fast,
            "must exceed yarn_beta_slow",
        )


def _check_combinations(c: ModelConfig) -> None:
    flash = c.flash_attention or c.attention_backend in ("flash", "varlen")
    flash_field = "model.flash_attention" if c.flash_attention else "model.attention_backend"
    flash_value = c.flash_attention or c.attention_backend

    def refuse(when: bool, field: str, value: Any, reason: str, remedy: str) -> None:
        require(not when, field, value, reason, remedy)

    refuse(
        c.alibi and c.rope,
        "model.alibi",
        True,
        "cannot be combined with rope=true",
        "Set one to false",
    )
    if c.position is not None:
        for name in ("rope", "alibi"):
            clash = getattr(c, name) and c.position != name
            refuse(
                clash,
                "model.position",
                c.position,
                f"contradicts {name}=true",
                f"Set {name} to false",
            )
            missing = c.position == name and not getattr(c, name)
            refuse(
                missing,
                "model.position",
                name,
                "is switched by its own field",
                f"Set model.{name}=true",
            )
    scheme = c.position_scheme
    refuse(
        flash and scheme in ("alibi", "relative"),
        flash_field,
        flash_value,
        f"the flash kernel takes no bias, which position={scheme} needs",
        "Use attention=auto (ALiBi has a fast kernel in flex), or choose rope",
    )
    refuse(
        scheme == "rope" and c.head_dim % 2 == 1,
        "model.rope",
        True,
        f"rotates pairs, but the head size d_model/n_heads is {c.head_dim}",
        "Choose d_model and n_heads so that it is even",
    )
    refuse(
        scheme in ("sinusoidal", "hybrid") and c.d_model % 2 == 1,
        "model.position",
        scheme,
        f"needs an even d_model, not {c.d_model}",
        "Choose an even d_model",
    )
    refuse(
        c.yarn_factor is not None and scheme != "rope",
        "model.yarn_factor",
        c.yarn_factor,
        f"stretches RoPE, but the position scheme is {scheme}",
        "Set rope=true, or yarn_factor to null",
    )
    refuse(
        c.sliding_window is not None and c.sliding_window_pattern is not None,
        "model.sliding_window",
        c.sliding_window,
        "contradicts sliding_window_pattern",
        "Set one of them to null",
    )
    refuse(
        c.peri_norm and c.norm_after,
        "model.peri_norm",
        True,
        "already normalises the output that norm_after=true names",
        "Set one of them to false",
    )
    refuse(
        c.attention_layer_norm_per_head and not c.attention_layer_norm,
        "model.attention_layer_norm_per_head",
        True,
        "does nothing while attention_layer_norm is false",
        "Set attention_layer_norm=true as well",
    )
    refuse(
        c.scale_emb_init and c.init_fn != "full_megatron",
        "model.scale_emb_init",
        True,
        f"is read by init_fn=full_megatron only, not by {c.init_fn}",
        "Set emb_init_std instead",
    )
    refuse(
        c.scale_emb_init and c.emb_init_std is not None,
        "model.scale_emb_init",
        True,
        f"is ignored while emb_init_std={c.emb_init_std} gives the embedding its own deviation",
        "Set one of them to null or false",
    )
    refuse(
        c.yarn_factor is not None and all(c.window(i) for i in range(c.n_layers)),
        "model.yarn_factor",
        c.yarn_factor,
        "stretches the layers with full attention only, and every layer has a window",
        "Give some layers full attention (-1 in sliding_window_pattern), or set it to null",
    )
    if c.block_type == "llama":
        refuse(
            c.norm_after or c.peri_norm,
            "model.norm_after" if c.norm_after else "model.peri_norm",
            True,
            "OLMo's llama block ignores it silently",
            "Use block_type=sequential, which computes the same function otherwise",
        )
        refuse(
            flash, flash_field, flash_value, "the llama block has its own softmax", "Use sequential"
        )
        refuse(
            c.attention_backend in ("sdpa", "flex"),
            "model.attention_backend",
            c.attention_backend,
            "the llama block has its own softmax and never calls a kernel",
            "Use block_type=sequential, or attention_backend=auto",
        )
