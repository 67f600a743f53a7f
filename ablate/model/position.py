"""How order enters the model. A scheme is a class with up to three hooks, listed in `POSITIONS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.imports import users_own
from ablate.errors import ConfigError
from ablate.model.cache import BufferCache
from ablate.model.config import ModelConfig
from ablate.model.rotary import Rotary, Rotation
from ablate.model.variants import find

__all__ = [
    "POSITIONS",
    "Alibi",
    "Hybrid",
    "Learned",
    "Position",
    "Relative",
    "Sinusoidal",
    "build_position",
]


class Position(nn.Module):
    """No positions at all (only causality tells the order), and the hooks a scheme overrides."""

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        super().__init__()
        self.config, self.cache = config, cache

    def embed(self, start: int, length: int, like: Tensor) -> Float[Tensor, "t d"] | None:
        """What is added to the embeddings of positions start … start + length - 1."""
        return None

    def bias(self, length: int, like: Tensor) -> Float[Tensor, "h t t"] | None:
        """What is added to the attention logits of query i and key j (rows are queries)."""
        return None

    def rotation(
        self, length: int, window: int | None, like: Tensor, size: int | None = None
    ) -> Rotation | None:
        """By what queries and keys 0 … length - 1 of a layer with this window are rotated.

        `size` is that of the layer's heads, and given where layers differ in it.
        """
        return None


class Learned(Position):
    """One trained vector for each position up to max_sequence_length (GPT-2)."""

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        super().__init__(config, cache)
        self.weight = nn.Parameter(torch.empty(config.max_sequence_length, config.d_model))

    def embed(self, start: int, length: int, like: Tensor) -> Float[Tensor, "t d"]:
        if start + length > self.weight.shape[0]:
            reason = f"has no position embedding for an input of {start + length} tokens"
            remedy = "Raise it, shorten the input, or choose rope or alibi"
            raise ConfigError("model.max_sequence_length", self.weight.shape[0], reason, remedy)
        return self.weight[start : start + length]


class Sinusoidal(Position):
    """Fixed sines and cosines of geometrically spaced frequencies (arXiv 1706.03762).

    There the embeddings are multiplied by sqrt(d_model), to unit variance, before the table is
    added. Here embeddings keep the scale of their initialisation, so the table is brought to that
    scale instead.
    """

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        super().__init__(config, cache)
        self.scale = _embedding_scale(config)

    def embed(self, start: int, length: int, like: Tensor) -> Float[Tensor, "t d"]:
        return _sinusoids(self.cache, self.config.d_model, self.scale, start, length, like)


class Hybrid(Learned):
    """Learned vectors plus fixed sinusoids, both added to the embedding.

    The sinusoids' amplitude is `hybrid_amplitude` standard deviations of the embedding as it is
    initialised; after that it stays, while embedding and learned vectors train. The learned vectors
    have the name, and with one standard deviation the draws, of those of position=learned, so that
    the two schemes differ in the sinusoids alone. What the source calls "relative" is this learned
    table, which is absolute. Its snippet draws it from N(0, 1): fifty times an embedding of
    standard deviation 0.02, which it drowns (position=hybrid_as_published).

    Raises:
        ConfigError: for an input longer than max_sequence_length, as Learned does.
    """

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        super().__init__(config, cache)
        self.scale = config.hybrid_amplitude * _embedding_scale(config)

    def embed(self, start: int, length: int, like: Tensor) -> Float[Tensor, "t d"]:
        learned = super().embed(start, length, like)
        d = self.config.d_model
        return learned + _sinusoids(self.cache, d, self.scale, start, length, like)


def _embedding_scale(config: ModelConfig) -> float:
    """Standard deviation of what position vectors are added to, at initialisation."""
    from ablate.model.init import embedding_std

    return 1.0 if config.embedding_layer_norm else embedding_std(config) or 1.0


def _sinusoids(
    cache: BufferCache, d: int, scale: float, start: int, length: int, like: Tensor
) -> Float[Tensor, "t d"]:
    def build(n: int) -> tuple[Tensor]:
        rates = torch.exp(torch.arange(0, d, 2, device=like.device) * (-math.log(10000.0) / d))
        angles = torch.outer(torch.arange(n, device=like.device).float(), rates)
        return (torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1) * scale,)

    table = cache.grown(("sinusoidal", like.device), start + length, build)[0]
    return table[start : start + length]


class Alibi(Position):
    """Logits less |i - j| · 2^(-h · alibi_bias_max / n_heads), h from 1 (arXiv 2108.12409)."""

    def bias(self, length: int, like: Tensor) -> Float[Tensor, "h t t"]:
        def build(n: int) -> tuple[Tensor]:
            place = torch.arange(n, device=like.device)
            distance = (place[None, :] - place[:, None]).abs().float()
            return (-distance * self.slopes(like)[:, None, None],)

        return self.cache.grown(("alibi", like.device), length, build)[0][:, :length, :length]

    def slopes(self, like: Tensor) -> Float[Tensor, " h"]:
        """What a logit loses per position of distance."""
        n_heads = self.config.n_heads
        heads = torch.arange(1, n_heads + 1, device=like.device).float()
        return 1.0 / torch.pow(2.0, heads * (self.config.alibi_bias_max / n_heads))


class Relative(Position):
    """One trained logit a head and bucket of distances, for all layers (T5, arXiv 1910.10683).

    Half of the buckets are single distances, the others widen logarithmically up to
    relative_max_distance.
    """

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        super().__init__(config, cache)
        self.weight = nn.Parameter(torch.empty(config.relative_num_buckets, config.n_heads))

    def buckets(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Bucket of each distance i - j; later keys share the bucket of distance 0."""
        count, farthest = self.config.relative_num_buckets, self.config.relative_max_distance
        exact = max(count // 2, 1)
        near = distance.clamp_min(0)
        ratio = torch.log(near.clamp_min(1).float() / exact) / math.log(farthest / exact)
        far = (exact + (ratio * (count - exact)).long()).clamp_max(count - 1)
        return torch.where(near < exact, near, far)

    def bias(self, length: int, like: Tensor) -> Float[Tensor, "h t t"]:
        def build(n: int) -> tuple[Tensor]:
            place = torch.arange(n, device=like.device)
            return (self.buckets(place[:, None] - place[None, :]),)

        buckets = self.cache.grown(("buckets", like.device), length, build)[0][:length, :length]
        return F.embedding(buckets, self.weight).permute(2, 0, 1)


class Rope(Position):
    """Rotary positions; the tables are in `ablate.model.rotary`."""

    def __init__(self, config: ModelConfig, cache: BufferCache) -> None:
        super().__init__(config, cache)
        self.rotary = Rotary(config, cache)

    def rotation(
        self, length: int, window: int | None, like: Tensor, size: int | None = None
    ) -> Rotation:
        return self.rotary.tables(length, window, like, size)


POSITIONS: dict[str, Callable[[ModelConfig, BufferCache], Position]] = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "hybrid": Hybrid,
    "rope": Rope,
    "alibi": Alibi,
    "relative": Relative,
    "none": Position,
}


def build_position(config: ModelConfig, cache: BufferCache) -> Any:
    """The scheme that the configuration names."""
    kind = find(POSITIONS, config.position_scheme, "model.position")
    with users_own("model.position", config.position_scheme):
        return kind(config, cache)
