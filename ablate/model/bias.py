"""Tables that are added to the logits of attention: what they hide, and how they are joined."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.errors import DataError

__all__ = ["LOWEST", "as_bias", "as_padding", "distance", "finite", "hide", "within"]

LOWEST = torch.finfo(torch.float32).min
"""What hides a key. Finite, so that a row in which every key is hidden has a softmax."""


def distance(n: int, device: torch.device) -> Int[Tensor, "n n"]:
    place = torch.arange(n, device=device)
    return place[:, None] - place[None, :]


def hide(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, LOWEST)


def within(bias: Float[Tensor, "*h q k"], window: int | None) -> Float[Tensor, "*h q k"]:
    """Hides the keys that lie `window` or more positions back."""
    if window is None:
        return bias
    keys, queries = bias.shape[-1], bias.shape[-2]
    far = distance(keys, bias.device)[keys - queries :] >= window
    return bias.masked_fill(far, LOWEST)


def finite(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """In `dtype`, with its lowest number where a sum of two hidings, or the cast, gave -inf."""
    return bias.to(dtype).clamp_min(max(torch.finfo(bias.dtype).min, torch.finfo(dtype).min))


def as_bias(bias: Tensor, keys: int) -> Float[Tensor, "#b #h k k"]:
    if not bias.is_floating_point():
        # The 1 of a key that is seen stays in, as upstream: softmax does not notice what is added
        # to all keys alike, but the last bits of the logits do.
        bias = torch.where(bias == 0, LOWEST, 1.0)
    if not 2 <= bias.ndim <= 4 or bias.shape[-1] < keys:
        text = f"attention_bias of shape {tuple(bias.shape)}: "
        raise DataError(
            text
            + f"give [k, k], [b, k, k] or [b, h, k, k] with k = {keys}, cached positions included."
        )
    bias = bias[None, None] if bias.ndim == 2 else bias[:, None] if bias.ndim == 3 else bias
    return bias[:, :, :keys, :keys].float()


def as_padding(mask: Tensor, keys: int) -> Float[Tensor, "b 1 1 k"]:
    if mask.shape[-1] != keys:
        text = f"attention_mask covers {mask.shape[-1]} positions, but there are {keys}"
        raise DataError(text + " (cached ones included). Give it one column for each.")
    return ((1.0 - mask.float()) * LOWEST)[:, None, None, :]
