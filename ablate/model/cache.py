"""What is computed once and kept: position tables and biases. Never in a state dict."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

__all__ = ["BufferCache", "KeyValue"]

KeyValue = tuple[Tensor, Tensor]
"""Keys (after clipping and QK-norm, before rotation) and values of one layer, each [b, g, k, c]."""


class BufferCache(dict[Hashable, tuple[Tensor, ...]]):
    """Tables by name, device and dtype, regrown when a longer one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: dict[Hashable, Any] = {}
        """What layers see (`mask.scopes`) in passes that are given nothing but tokens."""

    def grown(
        self, key: Hashable, length: int, build: Callable[[int], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """The tables under `key`, at least `length` long along their last dimension but one.

        `build(n)` makes them. After the first request the length is doubled, so that generating
        token by token does not rebuild them each step.
        """
        held = self.get(key)
        if held is None or held[0].shape[-2] < length:
            n = length if held is None else max(length, 2 * held[0].shape[-2])
            # Tables made in inference mode could not take part in training later.
            with torch.inference_mode(False), torch.no_grad():
                held = build(n)
            self[key] = held
        return held

    # Tables are cheap to rebuild: a copied or pickled model starts without them.
    def __deepcopy__(self, memo: dict[int, Any]) -> BufferCache:
        return BufferCache()

    def __reduce__(self) -> tuple[type[BufferCache], tuple[()]]:
        return BufferCache, ()
