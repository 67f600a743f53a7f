"""One layer: attention and MLP, each with its norm and its residual. Names are OLMo's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.attention import Scope, attend
from ablate.model.cache import KeyValue
from ablate.model.checkpointing import checkpointer
from ablate.model.config import ModelConfig
from ablate.model.linear import Linear, linear, multiply
from ablate.model.mlp import Gated, build_activation
from ablate.model.norm import build_norm, spelled_out
from ablate.model.recording import Recorder, largest_logit
from ablate.model.rotary import rotate
from ablate.model.streaming import HeldKeys

__all__ = ["BLOCKS", "Block", "BlockGroup", "LlamaBlock", "SequentialBlock"]


LARGE = 2**18
"""Elements from which a gated activation is fed by two products instead of one."""


class Block(nn.Module):
    """What both kinds share: everything but the projections to queries, keys and values.

    norm before:  x + f(norm(x))
    norm_after:   x + norm(f(x))
    peri_norm:    x + norm'(f(norm(x)))
    """

    ff_proj: Linear
    fine_grained_attention = False
    """Whether fine-grained checkpointing recomputes attention too."""
    softmax: torch.dtype | None = None
    """The type of attention's logits and softmax; None: as the kernel has it (see `protection`)."""

    def __init__(self, layer: int, config: ModelConfig) -> None:
        super().__init__()
        d, kv = config.d_model, config.head_dim * config.effective_n_kv_heads
        self.layer, self.config = layer, config
        self.recorder: Recorder | None = None
        self.fine_grained: Callable[..., Any] | None = None
        self.recompute = checkpointer(config)
        self.q_norm, self.k_norm, self.width_proj = None, None, None
        if config.attention_layer_norm:
            affine, per_head = (
                config.attention_layer_norm_with_affine,
                config.attention_layer_norm_per_head,
            )
            self.k_norm = build_norm(config, config.head_dim if per_head else kv, affine=affine)
            self.q_norm = build_norm(config, config.head_dim if per_head else d, affine=affine)
        self.act, inner = build_activation(config)
        self.attn_out = linear(d, d, bias=config.include_bias)
        self.ff_out = linear(inner, d, bias=config.include_bias)

    def widen_from(self, width: int) -> None:
        """Projects the input where the block below is of another width."""
        if width != self.config.d_model:
            self.width_proj = linear(width, self.config.d_model, bias=False)

    def add_norms(self) -> None:
        config = self.config
        self.attn_norm = build_norm(config)
        self.ff_norm = build_norm(config)
        if config.peri_norm:
            self.attn_norm_after = build_norm(config)
            self.ff_norm_after = build_norm(config)

    def project(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [b, t, h·c], keys and values [b, t, g·c], clipped."""
        raise NotImplementedError

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        scope: Scope,
        past: KeyValue | HeldKeys | None = None,
        use_cache: bool = False,
    ) -> tuple[Float[Tensor, "b t d"], KeyValue | None]:
        c = self.config
        run = self._run
        if self.width_proj is not None:
            x = self.width_proj(x)
        y = x if c.norm_after else run(self.attn_norm, x)
        q, k, v = self.project(y)
        attention = run if self.fine_grained_attention else _call
        y, present = attention(self.attention, q, k, v, scope, past, use_cache)
        if c.norm_after:
            y = run(self.attn_norm, y)
        elif c.peri_norm:
            y = run(self.attn_norm_after, y)
        x = x + self._drop(y)

        y = x if c.norm_after else run(self.ff_norm, x)
        y = self.feed_forward(y)
        if c.norm_after:
            y = run(self.ff_norm, y)
        elif c.peri_norm:
            y = run(self.ff_norm_after, y)
        x = x + self._drop(y)
        if self.recorder is not None:
            self.recorder.rms(f"model/activation_rms/{self.layer}", x)
        return x, present

    def feed_forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """W_out f(W_in x). With mlp_chunk the inner activations of so many positions exist at a
        time, and the backward pass computes them again.
        """
        chunk = self.config.mlp_chunk
        rows = x.flatten(0, 1)
        if not 0 < chunk < len(rows):
            return self.ff_out(self._run(self.act, *self.project_up(x)))
        again = self.recompute if torch.is_grad_enabled() else _call
        parts = [again(self._feed_chunk, part) for part in rows.split(chunk)]
        return torch.cat(parts).view_as(x)

    def _feed_chunk(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return self.ff_out(self.act(*self.project_up(x)))

    def project_up(self, x: Float[Tensor, "... d"]) -> tuple[Tensor, ...]:
        """The input of the activation; of a gated one, in two halves.

        Eagerly, a product for each half is faster from LARGE on: the gradients of two views of one
        tensor would have to be copied together, and the activation would read with a stride.
        """
        small = x.numel() // x.shape[-1] * self.config.hidden_size < LARGE
        m = self.ff_proj  # wrapped, parametrised or hooked, it must be called as a module
        whole = type(m) is not Linear or m._forward_hooks or m._forward_pre_hooks
        if small or whole or not isinstance(self.act, Gated) or spelled_out(x):
            return (self.ff_proj(x),)
        weights, bias = self.ff_proj.weight.chunk(2), self.ff_proj.bias
        biases = (None, None) if bias is None else bias.chunk(2)
        return tuple(multiply(x, w, b) for w, b in zip(weights, biases, strict=True))

    def attention(
        self,
        q: Float[Tensor, "b t hc"],
        k: Float[Tensor, "b t gc"],
        v: Float[Tensor, "b t gc"],
        scope: Scope,
        past: KeyValue | HeldKeys | None,
        use_cache: bool,
    ) -> tuple[Float[Tensor, "b t d"], KeyValue | None]:
        """QK-norm, heads, cache, rotation, kernel, output projection."""
        config, dtype = self.config, k.dtype
        heads = (*q.shape[:2], -1, config.head_dim)
        per_head = config.attention_layer_norm_per_head
        if self.q_norm is not None and self.k_norm is not None and not per_head:
            q, k = self.q_norm(q).to(dtype), self.k_norm(k).to(dtype)
        q, k, v = q.view(heads), k.view(heads), v.view(heads)
        if self.q_norm is not None and self.k_norm is not None and per_head:
            q, k = self.q_norm(q).to(dtype), self.k_norm(k).to(dtype)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if isinstance(past, HeldKeys):  # a bounded cache, which knows where each key stood
            y = past.attend(q, k, v, scope, self.softmax)
            return self.attn_out(y.transpose(1, 2).flatten(2)), None
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        present = (k, v) if use_cache else None
        if scope.rotation is not None:
            q = rotate(q, scope.rotation.last(q.shape[2]))
            k = rotate(k, scope.rotation)
        if self.recorder is not None:
            name = f"model/attention_logit_max/{self.layer}"
            self.recorder.largest(name, largest_logit(q, k, scope))
        dropout = config.attention_dropout if self.training else 0.0
        y = attend(q, k, v, scope, dropout, softmax=self.softmax)
        return self.attn_out(y.transpose(1, 2).flatten(2)), present

    def _drop(self, x: Tensor) -> Tensor:
        p = self.config.residual_dropout
        return F.dropout(x, p) if p and self.training else x

    def _run(self, function: Callable[..., Any], *inputs: Any) -> Any:
        return (
            function(*inputs) if self.fine_grained is None else self.fine_grained(function, *inputs)
        )


def _call(function: Callable[..., Any], *inputs: Any) -> Any:
    return function(*inputs)


class SequentialBlock(Block):
    """Queries, keys and values from one fused projection, in this order."""

    fine_grained_attention = True

    def __init__(self, layer: int, config: ModelConfig) -> None:
        super().__init__(layer, config)
        d, kv, bias = (
            config.d_model,
            config.head_dim * config.effective_n_kv_heads,
            config.include_bias,
        )
        self.widths = (d, kv, kv)
        self.att_proj = linear(d, sum(self.widths), bias=bias)
        self.ff_proj = linear(d, config.hidden_size, bias=bias)
        self.add_norms()

    def project(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor]:
        y, clip = self.att_proj(x), self.config.clip_qkv
        if clip is not None:
            y = y.clamp(-clip, clip)
        q, k, v = y.split_with_sizes(self.widths, dim=-1)
        return q, k, v


class LlamaBlock(Block):
    """Three separate projections, and the softmax spelled out. Otherwise the same function."""

    def __init__(self, layer: int, config: ModelConfig) -> None:
        super().__init__(layer, config)
        d, kv, bias = (
            config.d_model,
            config.head_dim * config.effective_n_kv_heads,
            config.include_bias,
        )
        self.add_norms()
        self.q_proj = linear(d, d, bias=bias)
        self.k_proj = linear(d, kv, bias=bias)
        self.v_proj = linear(d, kv, bias=bias)
        self.ff_proj = linear(d, config.hidden_size, bias=bias)

    def project(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, Tensor]:
        projected, clip = (self.q_proj(x), self.k_proj(x), self.v_proj(x)), self.config.clip_qkv
        if clip is None:
            return projected
        q, k, v = (y.clamp(-clip, clip) for y in projected)
        return q, k, v


class BlockGroup(nn.ModuleList):
    """Blocks that FSDP wraps together."""


BLOCKS: dict[str, type[Block]] = {"sequential": SequentialBlock, "llama": LlamaBlock}
