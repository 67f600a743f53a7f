"""A stream of any length through a model whose key/value cache holds so many tokens a layer.

Keys are held unrotated with the position that each had in the stream, and rotated when they are
read, so that an eviction leaves every distance what it was.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.config.schema.cache import CacheConfig
from ablate.errors import ConfigError
from ablate.model.attention import Scope, attend
from ablate.model.eviction import BY_ORDER, KEEPERS, Held
from ablate.model.here import case_here
from ablate.model.kernels import choose
from ablate.model.linear import compute_dtype
from ablate.model.rotary import Rotation, rotate

if TYPE_CHECKING:
    from ablate.model.transformer import OLMo

__all__ = ["HeldKeys", "Stream"]


class HeldKeys:
    """The cache of one layer, for one sequence."""

    def __init__(
        self,
        config: CacheConfig,
        position: Any,
        window: int | None,
        own_size: bool = False,
        observed: bool = False,
    ) -> None:
        """`own_size`: layers differ in the size of their heads. `observed`: `seen` holds attention
        also where the policy goes by the order of the tokens alone.
        """
        self.config, self.position, self.window = config, position, window
        self.own_size = own_size
        self.weighs = observed or config.name not in BY_ORDER
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
        self,
        q: Float[Tensor, "1 h t c"],
        k: Float[Tensor, "1 g t c"],
        v: Float[Tensor, "1 g t c"],
        scope: Scope,
        softmax: torch.dtype | None = None,
    ) -> Float[Tensor, "1 h t c"]:
        """Attention of a chunk to what is held and to itself; then the chunk is admitted.

        By the kernel of `scope`, the model's own, so that nothing differs from the model without a
        cache but the order of some sums. What a policy goes by is computed beside it.
        """
        t = q.shape[2]
        new = torch.arange(self.next, self.next + t, device=q.device)
        positions = torch.cat((self.positions.to(q.device), new))
        if self.keys is not None and self.values is not None:
            k, v = torch.cat((self.keys, k), dim=2), torch.cat((self.values, v), dim=2)
        queries, keys = q, k
        size = (q.shape[-1],) if self.own_size else ()
        table = self.position.rotation(self.next + t, self.window, q, *size)
        if table is not None:
            turn = Rotation(table.cos[positions], table.sin[positions], table.wide)
            queries, keys = rotate(q, turn.last(t)), rotate(k, turn)
        distance = new[:, None] - positions[None, :]
        hidden = distance < 0
        if self.window is not None:
            hidden |= distance >= self.window
        lowest = torch.finfo(q.dtype).min
        bias = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
        bias = bias.masked_fill(hidden, lowest)[None, None]
        own = dataclasses.replace(scope, bias=bias if bool(hidden.any()) else None, causal=False)
        each = _weights(queries, keys, bias) if self.weighs else None
        self._admit(k, v, positions, new, each)
        return attend(queries, keys, v, own, softmax=softmax)

    def _admit(
        self, k: Tensor, v: Tensor, positions: Tensor, new: Tensor, each: Tensor | None
    ) -> None:
        t, pad = len(new), torch.zeros(len(new), device=k.device)
        mass, used = (
            torch.cat((self.mass.to(k.device), pad)),
            torch.cat((self.used.to(k.device), new)),
        )
        given = torch.zeros_like(mass)
        if each is not None:
            given = each.sum(0)
            mass = mass + given
            visible = (new[:, None] >= positions[None, :]).sum(1, keepdim=True)
            last = torch.where(each > 1 / visible, new[:, None], -1).amax(0)
            used = torch.maximum(used, last)
        self.seen = (positions, given)
        held = Held(positions=positions, mass=mass, used=used, new=t)
        stay = KEEPERS[self.config.name](held, self.config)
        # Indexing copies: what is let go is really freed.
        self.keys, self.values = k[:, :, stay], v[:, :, stay]
        self.positions, self.mass, self.used = positions[stay], mass[stay], used[stay]
        self.next += t
        self.largest = max(self.largest, self.keys.nbytes + self.values.nbytes)


def _weights(
    q: Float[Tensor, "1 h t c"], k: Float[Tensor, "1 g n c"], bias: Float[Tensor, "1 1 t n"]
) -> Float[Tensor, "t n"]:
    """The attention of each query to each key, the mean over heads."""
    if (repeats := q.shape[1] // k.shape[1]) > 1:
        k = k.repeat_interleave(repeats, dim=1)
    logits = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.softmax(logits + bias, dim=-1)[0].float().mean(0)


class Stream:
    """A model that reads one sequence, chunk after chunk."""

    def __init__(self, model: OLMo, config: CacheConfig, *, observed: bool = False) -> None:
        """Raises ConfigError for position schemes that a cache with gaps cannot serve.

        `observed`: see `HeldKeys`.
        """
        scheme = model.config.position_scheme
        if scheme in ("alibi", "relative") or ":" in scheme:
            reason = f"adds position={scheme} to the logits by index, which evictions shift"
            remedy = "Use position=rope, sinusoidal, learned or none"
            raise ConfigError("cache.name", config.name, reason, remedy)
        self.model, c = model, model.config
        own = model.head_sizes is not None
        self.layers = [
            HeldKeys(config, model.position, c.window(i), own, observed) for i in range(c.n_layers)
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
    def read(self, ids: Int[Tensor, "1 t"], *, last: bool = False) -> Float[Tensor, "1 t v"]:
        """Logits of the next token at each position of the chunk, or after its last one alone."""
        model, parts = self.model, self.model.transformer
        x = model.embed(ids, self.position)
        case = case_here(model.config, x.device, compute_dtype(x), x.shape[1])
        case = dataclasses.replace(case, masked="keys from a cache")
        scope = Scope(backend=choose(model.config, case).kernel)
        for block, held in zip(model.blocks, self.layers, strict=True):
            x, _ = block(x, scope, held, False)
        x = x[:, -1:] if last else x
        x = parts["ln_f"](parts["width_out"](x) if "width_out" in parts else x)
        return model.unembedding.logits(x)

    def prompt(self, ids: Int[Tensor, "1 t"]) -> Float[Tensor, "1 1 v"]:
        """Reads it in chunks of `cache.chunk`; logits of the token after it."""
        parts = ids.split(self.layers[0].config.chunk, dim=1)
        return [self.read(part, last=True) for part in parts][-1]

    def fork(self) -> Stream:
        """Another one that goes on from here, and shares what was read."""
        other = copy.copy(self)
        other.layers = [copy.copy(layer) for layer in self.layers]
        return other
