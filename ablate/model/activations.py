"""Bytes that a forward pass keeps for its backward pass, by formula and without torch.

With S = rows x length positions, d = d_model, k the width of keys, i and o the MLP's before and
after its activation, h heads, p bytes of a product's result (2 under autocast and in pure bf16),
r of the residual stream, a layer keeps

| what                        | bytes                                                          |
|-----------------------------|----------------------------------------------------------------|
| each norm                   | RMS: 4 S d, the normalised values in float32; layer: its input |
| each product                | its input, p S d (i, o): the norm's result, or a cast of it    |
| queries, keys, values       | p S (d + 2 k), and p S (d + k) more where they are rotated     |
| a fused attention           | its result, p S d, and 4 S h logarithms of sums                |
| an attention spelled out    | its operands, 3 p S d, and p rows h T T of weights (T = length) |
| the activation              | its operands: gated 3 o, others i or i + o; then o for ff_out  |
| autocast                    | a cast of each weight                                          |

A checkpointed layer keeps its input instead, and has the rest for as long as its own backward pass
takes. Tensors that two operations share are counted once. What is measured with torch is in
`ablate.train.traced`; a test compares the two for every preset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ablate.model.block_activations import (
    backward_bytes,
    cast_bytes,
    fine_grained_backward,
    fine_grained_bytes,
    layer_bytes,
    norm_bytes,
)
from ablate.model.checkpointing import checkpoints_block
from ablate.model.config import ModelConfig
from ablate.model.kernels import FLEX_BLOCK, choose_all
from ablate.model.micro_batch import Pass, plan_case
from ablate.model.widths import layer_configs

__all__ = ["Activations", "Pass", "activations"]


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Bytes, when the forward pass ends and the backward pass has not begun."""

    layers: int
    """What the layers keep, for all of them."""
    casts: int
    """Copies of weights in the type of the products."""
    tables: int
    """Rotations and biases of attention: the same for all layers, and for all steps."""
    ends: int
    """Token ids, and what the final norm and the head keep beside the logits."""
    top: int
    """Of the ends, what is gone when the backward pass of the layers begins; in 16 bits nothing is
    counted so, for passing copies of a CPU's products make up for it, as measured.
    """
    each: tuple[int, ...]
    """Of layers and casts, what each layer has, from the lowest."""
    backward: tuple[int, ...]
    """What each layer has besides while its backward pass runs: gradients, and what is computed
    again of a checkpointed one.
    """

    @property
    def kept(self) -> int:
        return self.layers + self.casts + self.tables + self.ends

    def moments(self) -> list[int]:
        """While the backward pass of each layer runs, from the lowest; those above have nothing
        left.
        """
        rest = self.kept - self.top - sum(self.each)
        below = itertools.accumulate(self.each)
        return [rest + n + more for n, more in zip(below, self.backward, strict=True)]


def activations(config: ModelConfig, given: Pass, *, head: bool = True) -> Activations:
    """What is kept of one micro-batch.

    Args:
        config: the model.
        given: the micro-batch.
        head: False: the loss makes the logits itself, from the final norm's output.
    """
    s, layers = given.positions, layer_configs(config)
    kept = casts = 0
    each: list[int] = []
    besides: list[int] = []
    known: dict[tuple[int, Pass], tuple[int, int]] = {}
    backward: dict[tuple[int, Pass], int] = {}
    below = layers[0].d_model
    for index, layer in enumerate(layers):
        own = given.of_layer(index)
        if (id(layer), own) not in known:
            known[id(layer), own] = (layer_bytes(layer, own), cast_bytes(layer, own))
            backward[id(layer), own] = backward_bytes(layer, own)
        whole, cast = known[id(layer), own]
        before, again = kept + casts, backward[id(layer), own]
        if below != layer.d_model:
            whole += given.operand * s * below
            cast += given.operand * below * layer.d_model if given.copies else 0
        if checkpoints_block(given.checkpointing, index):
            kept += given.stream * s * below
            own_input = given.stream * s * below if _keeps_input(layer, own) else 0
            again += whole + cast - own_input
        elif given.checkpointing == "fine_grained":
            fine = fine_grained_bytes(layer, own)
            fine += given.operand * s * below * (below != layer.d_model)
            if layer.block_type != "llama":  # attention is computed again with its last product
                cast -= given.operand * layer.d_model**2 if given.copies else 0
            kept, casts, again = kept + fine, casts + cast, fine_grained_backward(layer, own)
        else:
            kept, casts = kept + whole, casts + cast
        each.append(kept + casts - before)
        besides.append(again)
        below = layer.d_model
    last = layers[0] if config.weight_tying else layers[-1]
    top = sum(norm_bytes(last, given.of_layer(None), last.d_model, inner=False))
    ends = 16 * s
    if config.embedding_layer_norm:
        ends += sum(norm_bytes(layers[0], given.of_layer(-1), layers[0].d_model, inner=False))
    if config.embedding_dropout:
        ends += (1 if given.device == "cuda" else given.stream) * s * layers[0].d_model
    if layers[-1].d_model != last.d_model:
        top += given.operand * s * layers[-1].d_model
    if head:
        top += given.operand * s * last.d_model
        if given.copies:
            casts += given.operand * config.embedding_rows * last.d_model
    return Activations(
        layers=kept,
        casts=casts,
        tables=sum(_tables(config, layers, given)),
        ends=ends + top,
        top=top if given.precision == "fp32" else 0,
        each=tuple(each),
        backward=tuple(besides),
    )


def _keeps_input(c: ModelConfig, given: Pass) -> bool:
    """Whether what a layer keeps is its own input, as it is: for its first product, or its norm.

    In float32 alone, as `Activations.top`.
    """
    if given.precision != "fp32" or c.block_type == "llama":
        return False
    return c.norm_after or (c.layer_norm_type == "default" and not given.widens_norms)


def _tables(c: ModelConfig, layers: list[ModelConfig], given: Pass) -> Iterator[int]:
    """What all layers of one window share, by the kernels that compute them."""
    t, p, scheme = given.length, given.product, c.position_scheme
    windows = [w if (w := c.window(i)) is not None and w < t else None for i in range(c.n_layers)]
    if scheme == "rope":
        sizes = {layer.head_dim for layer in layers}
        yarn = c.yarn_factor is not None and len(set(windows)) > 1
        yield sum(8 * t * size for size in sizes) * (1 + yarn)
    kernels = [choice.kernel for choice in choose_all(c, plan_case(c, given))]
    together = set(zip(windows, kernels, strict=True))
    blocks = sum(kernel == "flex" for _, kernel in together)
    if blocks:  # four lists of blocks, with their lengths, in int32; and each position's document
        n = -(-t // FLEX_BLOCK)
        yield blocks * (given.rows if given.documents else 1) * 16 * n * (n + 1)
        yield 8 * given.rows * t if given.documents else 0
    masked = given.documents and given.device == "cuda"
    per_head = c.n_heads if scheme in ("alibi", "relative") else 1
    causal = per_head == 1 and not masked
    shown = {w for w, kernel in together if kernel == "math" or (kernel == "sdpa" and w)}
    shown |= {w for w, kernel in together if kernel == "sdpa" and not causal}
    if scheme == "alibi" and shown:
        yield 4 * per_head * t * t
    elif scheme == "relative":
        yield 8 * t * t
    yield len(shown) * (given.rows if masked else 1) * per_head * p * t * t
