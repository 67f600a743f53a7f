"""Cross-entropy in float32, summed: the caller divides once by the labels of the whole batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ablate.data import IGNORED

__all__ = ["language_loss"]


def language_loss(
    logits: Float[Tensor, "b t v"], labels: Int[Tensor, "b t"], z_loss: float = 0.0
) -> Float[Tensor, " 2"]:
    """Sums over real labels of -log p(label), in nats, and of `z_loss * logsumexp(logits)^2`.

    Upstream divides by all input positions, which makes its loss (t-1)/t of the true mean, and
    never reads its z-loss multiplier. Columns that pad the vocabulary take part in the softmax.

    Args:
        logits: in any float type.
        labels: the token that follows each position; `IGNORED` where there is none.
        z_loss: multiplier (arXiv 2204.02311, section 5).
    """
    rows, targets = logits.flatten(0, 1).float(), labels.flatten()
    nats = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
    if not z_loss:
        return torch.stack((nats, torch.zeros_like(nats)))
    square = torch.logsumexp(rows, dim=-1).square()
    return torch.stack((nats, z_loss * square.masked_fill(targets == IGNORED, 0.0).sum()))
