"""ModelConfig: one flat dataclass, with the names, defaults and meaning of OLMo's own. No torch
here.

The first 43 fields are upstream's (ai2-olmo 0.6.0, `olmo/config.py`), so the `model:` section of an
official OLMo YAML works when pasted. What follows them is ours, in the same style. Combinations
that
make no sense are refused here, at configuration time, by field, value and remedy; upstream accepts
several of them silently or fails in the first forward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.config.typed import build, check_types, closest, require
from ablate.errors import ConfigError

__all__ = ["ModelConfig", "is_import_path"]

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu", "geglu", "reglu")
GATED = ("swiglu", "geglu", "reglu")
NORMS = ("default", "low_precision", "rms")
POSITIONS = ("learned", "sinusoidal", "relative", "none")
INITS = ("normal", "mitchell", "full_megatron", "gpt2", "llama", "llama_depth")
BLOCKS = ("sequential", "llama")
ATTENTION_BACKENDS = ("auto", "sdpa", "math", "flash")


def is_import_path(name: str) -> bool:
    """Whether `name` is `package.module:Object`, a variant of the user's own."""
    return ":" in name


@dataclass(kw_only=True)
class ModelConfig:
    d_model: int = 768
    """Hidden width."""
    n_heads: int = 12
    """Query heads; the head size is d_model // n_heads."""
    n_kv_heads: int | None = None
    """Key/value heads: None = n_heads, 1 = multi-query, between = grouped-query."""
    clip_qkv: float | None = None
    """Clamp queries, keys and values to plus or minus this."""
    n_layers: int = 12
    mlp_ratio: int = 4
    """MLP width before the gate, in units of d_model; used where mlp_hidden_size is None."""
    mlp_hidden_size: int | None = None
    """MLP width before the gate; a gated activation halves it."""
    activation_type: str = "swiglu"
    """gelu (exact), gelu_tanh, relu, relu2, silu, swiglu, geglu, reglu, or an import path."""
    block_type: str = "sequential"
    """sequential (fused query/key/value projection) or llama (three projections, explicit
    softmax).
    """
    block_group_size: int = 1
    """Blocks in one group, the unit of FSDP wrapping; changes the names in the state dict."""
    alibi: bool = False
    alibi_bias_max: float = 8.0
    rope: bool = False
    rope_full_precision: bool = True
    """Rotate in float32."""
    rope_theta: int = 10000
    flash_attention: bool = False
    """Use the flash-attn package (extra `flash`)."""
    attention_dropout: float = 0.1
    multi_query_attention: bool | None = None
    """Deprecated upstream: true means n_kv_heads = 1."""
    attention_layer_norm: bool = False
    """QK-norm: normalise queries and keys before the heads are split and rotated."""
    residual_dropout: float = 0.1
    embedding_dropout: float = 0.1
    embedding_layer_norm: bool = False
    layer_norm_type: str = "default"
    """default, low_precision, rms, or an import path."""
    layer_norm_with_affine: bool = True
    """Scale (and shift) of attn_norm, ff_norm, ln_f and emb_norm; not of QK-norm."""
    layer_norm_eps: float = 1e-5
    attention_layer_norm_with_affine: bool = True
    max_sequence_length: int = 1024
    include_bias: bool = True
    bias_for_layer_norm: bool | None = None
    """None follows include_bias."""
    scale_logits: bool = False
    """Multiply the logits by d_model ** -0.5."""
    vocab_size: int = 50257
    embedding_size: int | None = 50304
    """Rows of the embedding; None means vocab_size."""
    weight_tying: bool = True
    eos_token_id: int = 50256
    pad_token_id: int = 50256
    init_device: str | None = None
    init_fn: str = "normal"
    """normal, mitchell, full_megatron, gpt2, llama, llama_depth, or an import path."""
    init_std: float = 0.02
    init_cutoff_factor: float | None = None
    """Truncate at this many standard deviations."""
    precision: str | None = None
    """Informational, as upstream."""
    scale_emb_init: bool = False
    emb_init_std: float | None = None
    norm_after: bool = False
    """Normalise each sublayer's output instead of its input: x + norm(f(x))."""

    # ---- ours
    position: str | None = None
    """learned, sinusoidal, relative, none, or an import path; None: learned unless rope or
    alibi.
    """
    peri_norm: bool = False
    """Normalise each sublayer's input and its output (Peri-LN, arXiv 2502.02732)."""
    attention_layer_norm_per_head: bool = False
    """QK-norm over each head by itself (as Qwen 3) instead of over the full width."""
    sliding_window: int | None = None
    """A query sees itself and this many minus one earlier keys."""
    sliding_window_pattern: list[int] | None = None
    """Window of each layer, repeated over the depth; -1 is full attention (OLMo 3: [4096, 4096,
    4096, -1]).
    """
    sliding_window_full_last: bool = True
    """Force full attention on the last layer, as OLMo-core does with a pattern."""
    yarn_factor: float | None = None
    """Stretch RoPE by this factor (YaRN, arXiv 2309.00071) on the layers with full attention."""
    yarn_original_length: int = 8192
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    relative_num_buckets: int = 32
    """Buckets of the T5 relative bias (arXiv 1910.10683)."""
    relative_max_distance: int = 128
    attention_backend: str = "auto"
    """auto, sdpa, math (plain matmul-softmax) or flash."""

    def __post_init__(self) -> None:
        check_types(self, "model")
        _check(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ModelConfig:
        """A `model:` section, for example of an official OLMo YAML."""
        return build(cls, values, "model")

    def replace(self, **changes: Any) -> ModelConfig:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    # ---- derived

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def effective_n_kv_heads(self) -> int:
        if self.multi_query_attention:
            return 1
        return self.n_kv_heads or self.n_heads

    @property
    def hidden_size(self) -> int:
        """MLP width before the gate."""
        if self.mlp_hidden_size is not None:
            return self.mlp_hidden_size
        return self.mlp_ratio * self.d_model

    @property
    def is_gated(self) -> bool:
        return self.activation_type in GATED

    @property
    def inner_size(self) -> int:
        """MLP width after the activation (an import path's own ratio is asked of the class)."""
        return self.hidden_size // 2 if self.is_gated else self.hidden_size

    @property
    def embedding_rows(self) -> int:
        return self.embedding_size or self.vocab_size

    @property
    def norm_bias(self) -> bool:
        return self.include_bias if self.bias_for_layer_norm is None else self.bias_for_layer_norm

    @property
    def position_scheme(self) -> str:
        """rope, alibi, learned, sinusoidal, relative, none, or an import path."""
        if self.position is not None:
            return self.position
        return "rope" if self.rope else "alibi" if self.alibi else "learned"

    def window(self, layer: int) -> int | None:
        """Keys that a query of this layer sees, itself included; None is all of them."""
        if self.sliding_window_pattern is None:
            return self.sliding_window
        if self.sliding_window_full_last and layer == self.n_layers - 1:
            return None
        window = self.sliding_window_pattern[layer % len(self.sliding_window_pattern)]
        return None if window == -1 else window


def _check(c: ModelConfig) -> None:
    _check_sizes(c)
    _check_names(c)
    _check_ranges(c)
    _check_combinations(c)


def _check_sizes(c: ModelConfig) -> None:
    for name in (
        "d_model",
        "n_heads",
        "n_layers",
        "mlp_ratio",
        "max_sequence_length",
        "vocab_size",
    ):
        value = getattr(c, name)
        require(value > 0, f"model.{name}", value, "must be at least 1")
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
        if is_import_path(value) and name not in ("block_type", "attention_backend"):
            continue
        if name == "init_fn" and value in ("kaiming_normal", "fan_in"):
            reason = (
                "is named by OLMo but was never implemented there (it raises in reset_parameters)"
            )
            raise ConfigError("model.init_fn", value, reason, "Known: " + ", ".join(INITS))
        field = f"model.{name}"
        raise ConfigError(field, value, "must be one of " + ", ".join(known), closest(value, known))


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
    flash = c.flash_attention or c.attention_backend == "flash"
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
        "Switch flash attention off, or choose rope",
    )
    refuse(
        scheme == "rope" and c.head_dim % 2 == 1,
        "model.rope",
        True,
        f"rotates pairs, but the head size d_model/n_heads is {c.head_dim}",
        "Choose d_model and n_heads so that it is even",
    )
    refuse(
        scheme == "sinusoidal" and c.d_model % 2 == 1,
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
        c.init_cutoff_factor is not None and is_import_path(c.init_fn),
        "model.init_cutoff_factor",
        c.init_cutoff_factor,
        "is not read by an init function of your own",
        "Set it to null and truncate in the function",
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
