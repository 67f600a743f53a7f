"""Whether two configurations compute different functions: proved on small models, built."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ablate.model.config import ModelConfig
from ablate.model.transformer import OLMo
from ablate.model.widths import resolved

__all__ = ["Built", "Difference", "build", "compare", "meta_parameters", "shrink"]

ROUNDING = 1e-5
"""Relative difference up to which two kernels of one function may disagree in float32."""
TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a small model of a configuration does on fixed tokens and fixed weights."""

    logits: Tensor
    gradients: dict[str, Tensor]
    initial: dict[str, Tensor]
    """Weights as initialised."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    what: str | None
    """outputs, gradients, parameters or initialisation; None: nothing differs but rounding."""
    size: float
    """Largest relative difference of what differs."""

    def __str__(self) -> str:
        return "nothing" if self.what is None else f"{self.what} differ by {self.size:.1e}"


def meta_parameters(config: ModelConfig) -> int:
    """Parameters of the model built on the meta device, at its full size."""
    return OLMo(config.replace(init_device="meta"), init_params=False).num_params()


def shrink(config: ModelConfig, length: int) -> ModelConfig:
    """The same architecture, small: every ratio is kept as well as whole numbers allow.

    `length` is the sequence that it trains on; windows shrink with it.
    """
    config = resolved(config)
    heads = max(h for h in range(1, 9) if config.n_heads % h == 0)
    kv = max(1, heads * config.effective_n_kv_heads // config.n_heads)
    while heads % kv:
        kv -= 1
    width = 8 * heads
    hidden = max(2, round(config.hidden_size * width / config.d_model / 2) * 2)
    layers = min(config.n_layers, 4)
    scale = TOKENS / max(length, TOKENS)

    def window(size: int | None) -> int | None:
        return size if size is None or size == -1 else max(1, round(size * scale))

    pattern = config.sliding_window_pattern
    return config.replace(
        d_model=width,
        n_heads=heads,
        n_kv_heads=None if kv == heads else kv,
        multi_query_attention=None,
        n_layers=layers,
        block_group_size=1,
        mlp_hidden_size=hidden,
        vocab_size=64,
        embedding_size=None,
        eos_token_id=0,
        pad_token_id=0,
        max_sequence_length=TOKENS,
        sliding_window=window(config.sliding_window),
        sliding_window_pattern=None
        if pattern is None
        else [w for w in map(window, pattern) if w is not None],
        yarn_original_length=max(2, round(config.yarn_original_length * scale)),
        relative_max_distance=max(
            config.relative_num_buckets, round(config.relative_max_distance * scale)
        ),
        attention_dropout=0.0,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        init_device=None,
        layer_widths=_narrower(config, heads, layers),
        width_match="none",
        norm_segments=_divisor(config.norm_segments, 2 * heads if config.layer_widths else width),
        foundation_layers=_fewer(config.foundation_layers, config.n_layers, layers),
    )


def _narrower(config: ModelConfig, heads: int, layers: int) -> list[int] | None:
    """Widths written out, in proportion, of layers at equal distances."""
    if config.layer_widths is None:
        return None
    chosen = [config.layer_widths[i * config.n_layers // layers] for i in range(layers)]
    return [max(1, round(4 * w / config.d_model)) * 2 * heads for w in chosen]


def _divisor(segments: int | None, width: int) -> int | None:
    """The largest divisor of the width, itself left out, up to so many."""
    if segments is None:
        return None
    return max(k for k in range(1, max(width, 2)) if width % k == 0 and k <= segments)


def _fewer(blocks: int | None, of: int, layers: int) -> int | None:
    """The same share of the layers, and none only for none."""
    return blocks if not blocks else max(1, round(blocks * layers / of))


def build(config: ModelConfig, length: int) -> Built:
    """Logits and gradients of the small model; its weights depend on names and shapes alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small only wait for other threads
    try:
        return _build(shrink(config, length))
    finally:
        torch.set_num_threads(threads)


def _build(config: ModelConfig) -> Built:
    model = OLMo(config, init_params=True, seed=0)
    if model.moment is not None:
        model.moment.step, model.moment.steps = 1, 2  # its noise is the same each time
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_shared_weights(name, parameter))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (2, TOKENS), generator=generator)
    logits = model(tokens).logits
    labels = tokens[:, 1:].flatten()
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels).backward()
    gradients = {n: p.grad.detach() for n, p in model.named_parameters() if p.grad is not None}
    return Built(logits=logits.detach(), gradients=gradients, initial=initial)


def compare(a: Built, b: Built) -> Difference:
    """What tells b from a: outputs, else gradients, else the initial weights."""
    # A tensor without a gradient computes nothing, whatever it holds.
    used = {**a.gradients, **b.gradients}
    pairs: dict[str, list[tuple[Any, Any]]] = {
        "outputs": [(a.logits, b.logits)],
        "gradients": [(a.gradients.get(n), b.gradients.get(n)) for n in used],
        "initial weights": [(a.initial.get(n), b.initial.get(n)) for n in used],
    }
    for what, tensors in pairs.items():
        size = max((_distance(x, y) for x, y in tensors), default=0.0)
        if not size <= ROUNDING:
            return Difference(what=what, size=size)
    return Difference(what=None, size=max(_distance(x, y) for x, y in pairs["outputs"]))


def _distance(x: Tensor | None, y: Tensor | None) -> float:
    """Max |x - y| / max |x|; infinite where one is missing or of another shape."""
    if x is None or y is None or x.shape != y.shape:
        return float("inf")
    scale = max(float(x.abs().max()), float(y.abs().max()))
    return 0.0 if scale == 0 else float((x - y).abs().max()) / scale


def _shared_weights(name: str, parameter: Tensor) -> Tensor:
    """Random, biases and scales of norms too, so that each of them shows in the outputs."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    if parameter.dim() == 1:
        is_scale = name.endswith("weight")
        return values * 0.2 + (1.0 if is_scale else 0.0)
    return values / parameter.shape[-1] ** 0.5
