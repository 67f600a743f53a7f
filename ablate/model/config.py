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

from ablate.config.imports import is_import_path
from ablate.config.typed import build, check_types
from ablate.model.legality import check
from ablate.model.legality_foundation import check_foundation
from ablate.model.names import GATED

__all__ = ["ModelConfig"]


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
    """learned, sinusoidal, hybrid, relative, none, or an import path; None: learned unless rope or
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
    mlp_chunk: int = 0
    """Positions whose inner MLP activations exist at one time (less memory, computed again in the
    backward pass, the same function); 0: all.
    """
    attention_backend: str = "auto"
    """auto, sdpa, math (plain matmul-softmax), flash, varlen or flex; see `kernels`."""

    # ---- the foundation layer (docs/foundation.md)
    hybrid_amplitude: float = 0.1
    """position=hybrid: of the sinusoids, in standard deviations of the embedding as initialised."""
    hybrid_learned_std: float | None = None
    """position=hybrid: standard deviation of the learned vectors at initialisation; None: as of
    position=learned.
    """
    foundation_layers: int | None = None
    """Confines the norms' noise, and the narrow (or wide) part of a taper, to the embedding and so
    many of the lowest blocks; None: noise everywhere, a taper in `width_segments` steps.
    """
    norm_noise: float = 0.0
    """Standard deviation of the noise in the norms of the residual stream, in training only."""
    norm_noise_at: str = "after"
    """after normalising (before scale and shift), or before."""
    norm_noise_schedule: str = "constant"
    """constant, or linear to 0 at the last step."""
    layer_norm_scale: bool = True
    """False: these norms have a shift alone (bias_for_layer_norm switches the shift)."""
    norm_segments: int | None = None
    """Groups of features that share one scale and one shift; None: each has its own."""
    norm_grad_clip: float | None = None
    """Limit of the gradient at the output of these norms: of each position's summed loss, in nats
    per unit, whatever the batch size and the loss scale.
    """
    norm_grad_clip_by: str = "value"
    """value (each element) or norm (of each position's vector)."""
    width_taper: float = 1.0
    """Width of the lowest layer (and the embedding) over that of the highest; see `widths`."""
    width_segments: int = 4
    """Steps, of equal depth, in which a tapered width changes."""
    width_match: str = "params"
    """What a tapered model has in common with the uniform one: params, flops or none (the mean
    width).
    """
    layer_widths: list[int] | None = None
    """Each layer's width, written out instead of tapered; MLPs are in proportion."""

    def __post_init__(self) -> None:
        check_types(self, "model")
        check(self)
        check_foundation(self)

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
    def plain_norms(self) -> bool:
        """Whether the norms of the residual stream are the base norm and nothing else."""
        added = (self.norm_noise, self.norm_segments, self.norm_grad_clip)
        return not any(added) and self.layer_norm_scale

    @property
    def position_scheme(self) -> str:
        """rope, alibi, learned, sinusoidal, hybrid, relative, none, or an import path."""
        if self.position is not None:
            return self.position
        return "rope" if self.rope else "alibi" if self.alibi else "learned"

    @property
    def own_modules(self) -> dict[str, str]:
        """Fields that name a module of the user's own, each with its import path."""
        names = ("layer_norm_type", "activation_type", "position")
        named = {name: getattr(self, name) for name in names}
        return {name: path for name, path in named.items() if path and is_import_path(path)}

    @property
    def has_position_table(self) -> bool:
        """Whether each position up to max_sequence_length has a trained vector."""
        return self.position_scheme in ("learned", "hybrid")

    def window(self, layer: int) -> int | None:
        """Keys that a query of this layer sees, itself included; None is all of them."""
        if self.sliding_window_pattern is None:
            return self.sliding_window
        if self.sliding_window_full_last and layer == self.n_layers - 1:
            return None
        window = self.sliding_window_pattern[layer % len(self.sliding_window_pattern)]
        return None if window == -1 else window
