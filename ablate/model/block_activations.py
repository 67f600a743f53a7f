"""Bytes that one layer keeps for its backward pass; see `ablate.model.activations`."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.model.config import ModelConfig
from ablate.model.count import matrices
from ablate.model.kernel_case import bias_of
from ablate.model.kernels import choose
from ablate.model.micro_batch import Pass, plan_case
from ablate.model.names import NORMS

__all__ = [
    "backward_bytes",
    "cast_bytes",
    "fine_grained_backward",
    "fine_grained_bytes",
    "layer_bytes",
    "norm_bytes",
]

SPLIT = 2**18
"""Elements from which a gated activation is fed by two products (`ablate.model.block.LARGE`)."""


def layer_bytes(c: ModelConfig, given: Pass) -> int:
    """All that a block keeps which is not checkpointed."""
    s, d = given.positions, c.d_model
    copies = 3 if c.block_type == "llama" and given.copies else 1
    total = _norms(c, given) + copies * given.operand * s * d + _attention(c, given)
    return total + _residual_masks(c, given) - _shared(c, given) + _mlp(c, given)


def _norms(c: ModelConfig, given: Pass) -> int:
    total = 0
    for outer in range(2 if c.peri_norm else 1):
        total += 2 * sum(norm_bytes(c, given, c.d_model, inner=c.norm_after or outer == 1))
    return total


def cast_bytes(c: ModelConfig, given: Pass) -> int:
    """Copies of a block's weights, where products make them."""
    if not given.copies:
        return 0
    chunked = 0 < c.mlp_chunk < given.positions  # the copies go with each chunk
    mlp = c.d_model * (c.hidden_size + c.inner_size)
    return given.operand * (matrices(c) - mlp * chunked)


def _residual_masks(c: ModelConfig, given: Pass) -> int:
    """Of dropout, twice a layer."""
    if not c.residual_dropout:
        return 0
    widened = given.widens_norms or (c.layer_norm_type == "rms" and given.precision != "fp16")
    wide = given.stream if widened and (c.norm_after or c.peri_norm) else given.product
    return 2 * (1 if given.device == "cuda" else wide) * given.positions * c.d_model


def _shared(c: ModelConfig, given: Pass) -> int:
    """Results of two norms that are what they keep themselves, in float32 and without a scale."""
    bare = c.layer_norm_type == "rms" and not c.layer_norm_with_affine and given.precision == "fp32"
    return 8 * given.positions * c.d_model if bare and not c.norm_after else 0


def norm_bytes(c: ModelConfig, given: Pass, size: int, *, inner: bool) -> Iterator[int]:
    """Of one norm.

    Args:
        c: the layer's configuration.
        given: the micro-batch.
        size: of what is normalised.
        inner: whether its input is the result of a product, not the residual stream.
    """
    s, kind = given.positions, c.layer_norm_type
    own = c.norm_segments is not None or (c.norm_noise > 0 and c.norm_noise_at == "after")
    own = own and size == c.d_model
    if given.precision == "fp16" and kind in NORMS:
        affine = c.layer_norm_with_affine and not own
        yield _half_norm(c, given, affine) * s * size + 8 * s
    elif kind == "rms":
        yield 4 * s * size + 4 * s
    elif kind == "default":
        cast = given.widens_norms or (given.autocast and given.device == "cuda")
        wide = 4 if cast else given.product if inner else given.stream
        yield wide * s * size + 8 * s
    elif kind == "low_precision":
        yield given.product * s * size + 8 * s
    else:
        yield 8 * s * size  # the user's own: as the plain formula of a norm
    if own and c.layer_norm_with_affine:
        low = inner or given.precision == "fp16"
        wide = 4 if given.widens_norms else given.product if low else given.stream
        yield (0 if kind == "rms" and wide == 4 and not c.norm_noise else wide) * s * size


def _half_norm(c: ModelConfig, given: Pass, affine: bool) -> int:
    """Bytes a number that a norm in float16 keeps: its input, and in steps what it scales."""
    if _widens_halves(c, given):
        return 4 + 4 * affine
    return 2 + 2 * affine * (not given.fused_norms)


def _widens_halves(c: ModelConfig, given: Pass) -> bool:
    """Torch's RMS norm of float16 for a CPU is in steps, in float32."""
    return given.fused_norms and c.layer_norm_type == "rms" and given.device == "cpu"


def _kernel(c: ModelConfig, given: Pass) -> str:
    """fused; or math and torch, where length x length weights a head exist: spelled out by
    `ablate.model.attention`, or by torch itself where its fused kernel for a CPU cannot do it.
    """
    if given.precision == "fp16" or choose(c, plan_case(c, given)).kernel == "math":
        return "math"
    trained = bias_of(c) in ("relative", "own")
    return "torch" if given.device == "cpu" and (c.attention_dropout or trained) else "fused"


def _attention(c: ModelConfig, given: Pass) -> int:
    """Between the products that lead into it and the one that leads out."""
    s, p, d, heads = given.positions, given.product, c.d_model, c.n_heads
    kv = c.head_dim * c.effective_n_kv_heads
    repeated = kv != d
    fused_projection, rotated = p * s * (d + 2 * kv), c.position_scheme == "rope"
    total = fused_projection if c.clip_qkv is not None else 0
    raw = False  # whether anything keeps queries, keys and values as they were projected
    if c.attention_layer_norm:
        groups = heads + c.effective_n_kv_heads if c.attention_layer_norm_per_head else 2
        if given.precision == "fp16" and c.layer_norm_type in NORMS:
            each = _half_norm(c, given, c.attention_layer_norm_with_affine)
            centred = c.layer_norm_type != "rms" and not given.fused_norms
            raw = not (centred or _widens_halves(c, given))  # else it keeps tensors of its own
            total += (each - given.product * raw) * s * (d + kv) + 8 * s * groups
        elif c.layer_norm_type == "rms" or given.widens_norms:
            total += 4 * s * (d + kv) + 4 * s * groups
        else:
            raw = True
            total += 0 if given.device == "cpu" or not given.autocast else 4 * s * (d + kv)
    how = _kernel(c, given)
    if how != "fused":
        wide = 4 if how == "torch" or _widened(given) else p
        total += (3 * wide + given.operand) * s * d + _scores(c, given, how)
        whole = how == "torch" or rotated or c.attention_layer_norm
        if given.rows == 1 and whole and wide == p and not repeated and c.block_type != "llama":
            raw, total = True, total - p * s * d  # the values of one row are a view, not a copy
        return total + (fused_projection if raw else 0)
    protected = given.precision == "fp16_protected" and given.device == "cpu"
    if protected or not given.native:
        wide = p if given.autocast and not protected else 4
        apart = wide * (4 * d if repeated else 2 * d + 2 * kv) + given.operand * d
        total += s * apart + 4 * s * heads
        return total + (fused_projection if raw else 0)
    changed = rotated or c.attention_layer_norm
    total += p * s * d if changed else 0
    if repeated:
        total += 2 * p * s * d
        raw = raw or not changed
    else:
        total += p * s * kv if changed else 0
        raw = True
    total += fused_projection if raw else 0
    split = given.documents and given.device == "cpu"
    return total + p * s * d + 4 * s * heads + (p * s * d if split else 0)


def _widened(given: Pass) -> bool:
    """Whether attention's products in float16 are taken in float32: CPUs have no other."""
    return given.precision == "fp16" and given.device == "cpu"


def _scores(c: ModelConfig, given: Pass, how: str) -> int:
    """Attention's weights, and what their softmax and dropout keep besides."""
    entries = given.rows * c.n_heads * given.length**2
    dropped = bool(c.attention_dropout)
    if how == "torch":
        return (4 + 8 * dropped) * entries
    if _widened(given):
        return (4 + given.product * (1 + dropped)) * entries
    if given.device == "cuda":
        wide = 4 if given.autocast and given.precision != "fp16" else 0
        return (wide + given.product + (1 + given.product) * dropped) * entries
    return given.product * (1 + 2 * dropped) * entries


def _mlp(c: ModelConfig, given: Pass) -> int:
    s, p, d, inner, outer = given.positions, given.product, c.d_model, c.hidden_size, c.inner_size
    if 0 < c.mlp_chunk < s:
        # Its input and its output, which the residual sum does not need, but the parts are joined.
        return given.stream * s * d
    gated, kind = c.is_gated, c.activation_type
    split = gated and s * inner >= SPLIT and not given.compiled
    inputs = given.operand * s * d * (2 if split and given.copies else 1)
    if kind == "reglu":
        held = 2 * outer if split else 3 * outer
    elif gated:
        held = 3 * outer
    else:
        alias = kind == "relu" and given.operand == p  # its result is what ff_out keeps
        held = 0 if alias else inner
    return inputs + s * (p * held + given.operand * outer)


def backward_bytes(c: ModelConfig, given: Pass) -> int:
    """Gradients of activations that exist together, in the backward pass of one layer, less what it
    has let go by then.

    Around the activation: of its input and its output, and of the residual stream; what the last
    product kept is gone (in float32, see `Activations.top`). In an attention spelled out: of the
    weights, before and after the softmax; the MLP's activations are gone then.
    """
    stream = 2 * given.stream * given.positions * c.d_model
    return stream + max(_mlp_gradients(c, given), _score_gradients(c, given) - _mlp(c, given))


def _mlp_gradients(c: ModelConfig, given: Pass) -> int:
    s, inner, outer = given.positions, c.hidden_size, c.inner_size
    mlp = 0 if 0 < c.mlp_chunk < s else given.product * s * (inner + outer)
    # relu keeps its result itself.
    if mlp and given.precision == "fp32" and c.activation_type != "relu":
        mlp -= given.operand * s * outer
    return mlp


def _score_gradients(c: ModelConfig, given: Pass) -> int:
    how = _kernel(c, given)
    if how == "fused":
        return 0
    return 2 * given.rows * c.n_heads * given.length**2 * (4 if how == "torch" else given.product)


def fine_grained_backward(c: ModelConfig, given: Pass) -> int:
    """As `backward_bytes`, with what is computed again: of the activation first, and when that and
    all that the MLP kept are gone, of attention.
    """
    s, d = given.positions, c.d_model
    mlp = _fine_grained_mlp(c, given)
    activation = _mlp(c, given) - mlp
    norms = _norms(c, given) - _fine_grained_norms(c, given)
    attention = layer_bytes(c, given) - fine_grained_bytes(c, given) - activation - norms
    if given.copies and c.block_type != "llama":  # with its last product
        attention += given.operand * d**2
    return 2 * given.stream * s * d + max(
        _mlp_gradients(c, given) + max(activation, 0),
        _score_gradients(c, given) + attention - mlp,
    )


def fine_grained_bytes(c: ModelConfig, given: Pass) -> int:
    """Inputs of what is computed again (norms, attention, activation) and of the products."""
    s, p, d = given.positions, given.product, c.d_model
    kv = c.head_dim * c.effective_n_kv_heads
    copies = 3 if c.block_type == "llama" and given.copies else 1
    total = _fine_grained_norms(c, given) + copies * given.operand * s * d
    if c.block_type == "llama":
        total += _attention(c, given)
    else:
        total += p * s * (d + 2 * kv) * (2 if c.clip_qkv is not None else 1)
    return total + _residual_masks(c, given) + _fine_grained_mlp(c, given)


def _fine_grained_norms(c: ModelConfig, given: Pass) -> int:
    wide = 0 if c.norm_after else given.stream
    wide += given.product if c.norm_after or c.peri_norm else 0
    return 2 * wide * given.positions * c.d_model


def _fine_grained_mlp(c: ModelConfig, given: Pass) -> int:
    s, d, inner, outer = given.positions, c.d_model, c.hidden_size, c.inner_size
    if 0 < c.mlp_chunk < s:
        return given.stream * s * d
    split = c.is_gated and s * inner >= SPLIT and not given.compiled
    inputs = given.operand * s * d * (2 if split and given.copies else 1)
    return inputs + s * (given.product * inner + given.operand * outer)
