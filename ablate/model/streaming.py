"""A stream of any length through a model whose key/value cache holds so many tokens a layer.

Keys are held unrotated with the position that each had in the stream, and rotated when they are
read, so that an eviction leaves every distance what it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.config.schema.cache import CacheConfig
from ablate.errors import ConfigError
from ablate.model.eviction import KEEPERS, Held
from ablate.model.rotary import Rotation, rotate

if TYPE_CHECKING:
    from ablate.model.transformer import OLMo

__all__ = ["HeldKeys", "Stream"]


class HeldKeys:
    """The cache of one layer, for one sequence."""

    def __init__(
        self, config: CacheConfig, position: Any, window: int | None, own_size: bool = False
    ) -> None:
        """`own_size`: layers differ in the size of their heads."""
        self.config, self.position, self.window = config, position, window
        self.own_size = own_size
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.positions = torch.empty(0, dtype=torch.long)
        self.mass = torch.empty(0)
        self.used = torch.empty(0, dtype=torch.long)
        self.next = 0
        self.largest = 0
        """Bytes of keys and values that were held between two chunks, at most."""
        self.seen: tuple[Tensor, Tensor] | None = None
        """Positions that the last chunk could see, and the attention that it gave them."""

    def attend(
        self, q: Float[Tensor, "1 h t c"], k: Float[Tensor, "1 g t c"], v: Float[Tensor, "1 g t c"]
    ) -> Float[Tensor, "1 h t c"]:
        """Attention of a chunk to what is held and to itself; then the chunk is admitted."""
        t = q.shape[2]
        new = torch.arange(self.next, self.next + t, device=q.device)
        positions = torch.cat((self.positions.to(q.device), new))
        if self.keys is not None and self.values is not None:
            k, v = torch.cat((self.keys, k), dim=2), torch.cat((self.values, v), dim=2)
        queries, keys, values = q, k, v
        size = (q.shape[-1],) if self.own_size else ()
        table = self.position.rotation(self.next + t, self.window, q, *size)
        if table is not None:
            turn = Rotation(table.cos[positions], table.sin[positions], table.wide)
            queries, keys = rotate(q, turn.last(t)), rotate(k, turn)
        if (repeats := q.shape[1] // k.shape[1]) > 1:
            keys, values = (x.repeat_interleave(repeats, dim=1) for x in (keys, values))
        logits = torch.matmul(queries, keys.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        distance = new[:, None] - positions[None, :]
        hidden = distance < 0
        if self.window is not None:
            hidden |= distance >= self.window
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
        weights = torch.softmax(logits, dim=-1)
        self._admit(k, v, positions, new, weights)
        return torch.matmul(weights.to(values.dtype), values)

    def _admit(self, k: Tensor, v: Tensor, positions: Tensor, new: Tensor, weights: Tensor) -> None:
        each = weights[0].float().mean(0)  # [t, n], over heads
        given, t = each.sum(0), len(new)
        self.seen = (positions, given)
        pad = torch.zeros(t, device=given.device)
        mass = torch.cat((self.mass.to(given.device), pad)) + given
        visible = (new[:, None] >= positions[None, :]).sum(1, keepdim=True)
        last = torch.where(each > 1 / visible, new[:, None], -1).amax(0)
        used = torch.maximum(torch.cat((self.used.to(given.device), new)), last)
        held = Held(positions=positions, mass=mass, used=used, new=t)
        stay = KEEPERS[self.config.name](held, self.config)
        # Indexing copies: what is let go is really freed.
        self.keys, self.values = k[:, :, stay], v[:, :, stay]
        self.positions, self.mass, self.used = positions[stay], mass[stay], used[stay]
        self.next += t
        self.largest = max(self.largest, self.keys.nbytes + self.values.nbytes)


class Stream:
    """A model that reads one sequence, chunk after chunk."""

    def __init__(self, model: OLMo, config: CacheConfig) -> None:
        """Raises ConfigError for position schemes that a cache with gaps cannot serve."""
        scheme = model.config.position_scheme
        if scheme in ("alibi", "relative") or ":" in scheme:
            reason = f"adds position={scheme} to the logits by index, which evictions shift"
            remedy = "Use position=rope, sinusoidal, learned or none"
            raise ConfigError("cache.name", config.name, reason, remedy)
        self.model, c = model, model.config
        own = model.head_sizes is not None
        self.layers = [
            HeldKeys(config, model.position, c.window(i), own) for i in range(c.n_layers)
        ]

    @property
    def position(self) -> int:
        """Tokens read so far."""
        return self.layers[0].next

    @property
    def bytes(self) -> int:
        """Of keys and values of all layers, at most."""
        return sum(layer.largest for layer in self.layers)

    @torch.no_grad()
    def read(self, ids: Int[Tensor, "1 t"]) -> Float[Tensor, "1 t v"]:
        """Logits of the next token at each position of the chunk."""
        model, parts = self.model, self.model.transformer
        x = parts["wte"](ids)
        if model.config.embedding_layer_norm:
            x = parts["emb_norm"](x)
        place = model.position.embed(self.position, ids.shape[1], x)
        x = x if place is None else x + place
        for block, held in zip(model.blocks, self.layers, strict=True):
            x, _ = block(x, None, held, False)
        x = parts["ln_f"](parts["width_out"](x) if "width_out" in parts else x)
        return model.unembedding.logits(x)

    def write(self, prompt: Int[Tensor, "1 t"], steps: int) -> Int[Tensor, "1 s"]:
        """The prompt continued greedily."""
        chunk = self.layers[0].config.chunk
        logits = [self.read(part) for part in prompt.split(chunk, dim=1)][-1]
        made = []
        for _ in range(steps):
            made.append(logits[:, -1:].argmax(-1))
            logits = self.read(made[-1])
        return torch.cat(made, dim=1)
