"""Bytes that the logits and their loss take, by formula and without torch."""

from __future__ import annotations

from ablate.model.config import ModelConfig
from ablate.model.micro_batch import Pass
from ablate.model.widths import layer_configs

__all__ = ["logit_bytes"]


def logit_bytes(config: ModelConfig, given: Pass, *, chunk: int = 0, z_loss: bool = False) -> int:
    """The most that exists at one time beside the activations.

    All at once, in the backward pass: log-probabilities, their gradient and that of the logits, in
    float32 whatever the logits are, which are gone by then; with z-loss the logits in float32 and
    their gradient from it besides. In chunks: as much of `chunk` positions (one table only, in
    float32 without casts), the gradient of the hidden states, the sum of the gradients of the
    head's weights in float32, and a cast of the weights, or in the end of the sum, in 16 bits.

    Args:
        config: the model.
        given: the micro-batch.
        chunk: positions whose logits exist at one time; 0: all.
        z_loss: whether the loss has that term.
    """
    rows, s = config.embedding_rows, given.positions
    head = (layer_configs(config)[0 if config.weight_tying else -1]).d_model
    each = 6 if given.unprotected else 12
    each += 8 if z_loss else 0
    if not 0 < chunk < s:
        return each * s * rows
    by_hand = given.precision == "fp32"
    table = (4 if by_hand else each) * chunk * rows
    weights = rows * (head + config.include_bias)
    own = 2 * weights if given.weight == 2 else 0  # of the sum, when the last chunk is gone
    return max(table + 2 * weights * given.copies, own) + 4 * weights + given.stream * s * head
