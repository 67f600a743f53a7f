"""Parameters and FLOPs of a configuration by formula, without torch, so that planning is free.

With d = d_model (of the layer, where widths differ), k = n_kv_heads · d / n_heads, i and o the
MLP's width before and after its activation, E the rows of the embedding:

| tensor                    | weights     | biases   |                                     |
|---------------------------|-------------|----------|-------------------------------------|
| queries, keys, values     | d (d + 2 k) | d + 2 k  | each layer                          |
| attention output          | d d         | d        | each layer                          |
| MLP in, MLP out           | d i + o d   | i + d    | each layer                          |
| attn_norm, ff_norm        | d each      | d each   | each layer; with peri_norm two more |
|                           |             |          | norm_segments each, where it is set |
| q_norm, k_norm            | d and k     | the same | each layer; per head: the head size |
| ln_f, emb_norm            | d           | d        |                                     |
| embedding, untied head    | E d         | E (head) |                                     |
| learned, hybrid positions | T d         |          | T = max_sequence_length             |
| between unequal widths    | d d'        |          | and back to a tied head             |
| relative positions        | b n_heads   |          | b = relative_num_buckets            |

A norm, activation or position scheme of the user's own (an import path) has a size that only its
class knows: then, and only then, the model is built on torch's meta device and counted.
"""

from __future__ import annotations

import itertools
from typing import Any

from ablate.model.config import ModelConfig
from ablate.model.widths import layer_configs

__all__ = ["block_parameters", "flops_per_token", "matrices", "parameters"]


def parameters(config: ModelConfig, include_embedding: bool = True) -> int:
    """Trained numbers of the model, equal to those of the built one.

    Args:
        config: the model; its `init_device` is not looked at.
        include_embedding: False leaves out token and position embeddings, hence a tied head too; an
            untied head stays, as upstream counts.

    Raises:
        ConfigError: for an import path that cannot be imported.
    """
    if config.own_modules:
        return _on_meta(config).num_params(include_embedding=include_embedding)
    c, layers = config, layer_configs(config)
    lowest, highest = layers[0], layers[-1]
    total = sum(
        n * (matrices(layer) + _biases(layer) + _block_norms(layer))
        for layer, n in _counted(layers)
    )
    total += _stream_norm(lowest if c.weight_tying else highest) + _projections(c, layers)
    if c.embedding_layer_norm:
        total += _stream_norm(lowest)
    if not c.weight_tying:
        total += c.embedding_rows * (highest.d_model + c.include_bias)
    if c.position_scheme == "relative":
        total += c.relative_num_buckets * c.n_heads
    if include_embedding:
        total += c.embedding_rows * lowest.d_model
        total += c.max_sequence_length * lowest.d_model if c.has_position_table else 0
    return total


def flops_per_token(config: ModelConfig, sequence_length: int) -> int:
    """FLOPs of one token of training, forward and backward: 6 W + 12 (d_1 s_1 + … + d_L s_L).

    W counts the weights of every matrix product (the output head too, tied or not; a look-up costs
    nothing), at 2 FLOPs each forward and 4 backward. Layer l scores s_l = min(its window,
    sequence_length) keys: 4 d_l s_l FLOPs forward for scores and mixture, twice that backward. The
    causal half that a kernel may skip is counted, as OLMo-core and PaLM count it (arXiv 2204.02311,
    appendix B). Norms, activations, softmax, positions and the optimiser are left out.

    Args:
        config: the model.
        sequence_length: tokens in a training sequence.
    """
    layers = layer_configs(config)
    weights = sum(n * matrices(layer) for layer, n in _counted(layers))
    weights += _projections(config, layers)
    if config.own_modules:
        weights = _matrices_on_meta(config)
    weights += config.embedding_rows * layers[0 if config.weight_tying else -1].d_model
    scored = 0
    for i, layer in enumerate(layers):
        window = config.window(i)
        keys = sequence_length if window is None else min(window, sequence_length)
        scored += layer.d_model * keys
    return 6 * weights + 12 * scored


def block_parameters(config: ModelConfig) -> list[int]:
    """Trained numbers of each block, a projection from the width below included.

    Of a norm of the user's own the size is not known here: it counts as the built-in one's.
    """
    layers = layer_configs(config)
    sizes = {id(c): matrices(c) + _biases(c) + _block_norms(c) for c in layers}
    widths = [layers[0].d_model, *(layer.d_model for layer in layers)]
    widened = [a * b * (a != b) for a, b in itertools.pairwise(widths)]
    return [sizes[id(c)] + extra for c, extra in zip(layers, widened, strict=True)]


def _counted(layers: list[ModelConfig]) -> list[tuple[ModelConfig, int]]:
    """Each distinct layer, with how many are like it."""
    alike = {id(layer): layer for layer in layers}
    return [(layer, sum(other is layer for other in layers)) for layer in alike.values()]


def _projections(c: ModelConfig, layers: list[ModelConfig]) -> int:
    """Weights between layers of unequal width, and from the last one back to a tied head."""
    widths = [layer.d_model for layer in layers]
    ends = [*widths, widths[0]] if c.weight_tying else widths
    return sum(a * b for a, b in itertools.pairwise(ends) if a != b)


def matrices(c: ModelConfig) -> int:
    """Weights of one block's matrix products."""
    d, kv = c.d_model, c.head_dim * c.effective_n_kv_heads
    return d * (d + 2 * kv) + d * d + d * c.hidden_size + c.inner_size * d


def _biases(c: ModelConfig) -> int:
    if not c.include_bias:
        return 0
    d, kv = c.d_model, c.head_dim * c.effective_n_kv_heads
    return (d + 2 * kv) + d + c.hidden_size + d


def _block_norms(c: ModelConfig) -> int:
    norms = _stream_norm(c) * (4 if c.peri_norm else 2)
    if c.attention_layer_norm:
        per_head = c.attention_layer_norm_per_head
        queries = c.head_dim if per_head else c.d_model
        keys = c.head_dim if per_head else c.head_dim * c.effective_n_kv_heads
        norms += _norm(c, queries + keys, c.attention_layer_norm_with_affine)
    return norms


def _stream_norm(c: ModelConfig) -> int:
    """A norm of the residual stream: scale and shift of each feature, or of each segment."""
    if not c.layer_norm_with_affine:
        return 0
    return (c.norm_segments or c.d_model) * (c.layer_norm_scale + c.norm_bias)


def _norm(c: ModelConfig, size: int, affine: bool) -> int:
    return size * (1 + c.norm_bias) if affine else 0


def _on_meta(config: ModelConfig) -> Any:
    from ablate.model import OLMo

    return OLMo(config.replace(init_device="meta"), init_params=False)


def _matrices_on_meta(config: ModelConfig) -> int:
    """Weights of the blocks' matrix products, read off the built model."""
    blocks = (
        "attn_out",
        "att_proj",
        "q_proj",
        "k_proj",
        "v_proj",
        "ff_proj",
        "ff_out",
        "width_proj",
    )
    return sum(
        p.numel()
        for name, p in _on_meta(config).named_parameters()
        if name.endswith(".width_out.weight")
        or ("block" in name and name.endswith(tuple(f".{m}.weight" for m in blocks)))
    )
