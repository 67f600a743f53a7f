"""Whether a model reads later tokens: found on a small copy of it, by changing them.

The tokens from some position on are replaced, and the logits before it must stay what they were. No
gradient is asked for, so a value that is detached or looked at is seen too. All rows are changed at
once: statistics over the batch at one position are no leak, those over positions are. In evaluation
mode, as validation reads: running statistics are no leak either.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.model.compare import ROUNDING, shrink
from ablate.model.config import ModelConfig
from ablate.model.transformer import OLMo
from ablate.model.widths import is_uniform

__all__ = ["Leak", "find_leak", "leaking_fields", "shake"]

OURS = {"layer_norm_type": "default", "activation_type": "gelu", "position": "none"}
"""A causal module of ours for each field that may name one of the user's own."""
LONGEST = 256
"""Tokens that are read, at the most; no fewer than `SHORTEST`."""
SHORTEST = 16
SMALLEST = 1e-3
"""Share of the largest change; what is less may be rounding (of a sum over all positions, say, from
which the later ones are subtracted).
"""
JITTER = 1e-6
"""Relative change of the embeddings, larger than float32's rounding, that shows what rounding comes
to in this model: far more where a module rounds to bfloat16 in between.
"""
MARGIN = 4.0
"""Times that; the largest of a few such changes is not that of all."""
LARGEST = 2e7
"""Weights of a copy at its own width; a larger one takes longer than a trial should wait."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    position: int
    """Whose logits changed most, of those that come before `changed`."""
    changed: int
    """The first token that was replaced."""
    size: float
    """That change over the largest one of all positions."""

    def __str__(self) -> str:
        return (
            f"with other tokens from position {self.changed} on, the outputs at position "
            f"{self.position} change, by {self.size:.2g} of the largest change"
        )


def find_leak(config: ModelConfig, length: int) -> Leak | None:
    """The largest leak of the model, on the CPU in float32.

    Nothing outside is touched: the copy has weights of its own, and the generators of torch, numpy
    and Python are put back.

    Args:
        config: of the model; it is shrunk, its widths too where its modules take any.
        length: tokens that it trains on.

    Raises:
        ArithmeticError: where two equal passes differ, or outputs are not finite.
        Exception: what a module of the user's own raises.
    """
    with _undisturbed():
        small = _small(shrink(config, length), length)
        try:
            return _leak(small)
        except Exception:
            wide = _at_its_width(config, length)
            if wide is None:
                raise
            with contextlib.suppress(Exception):
                return _leak(wide)
            raise


def leaking_fields(config: ModelConfig, length: int) -> list[str]:
    """Those of a leaking model's own modules that leak by themselves; all of them, if none does."""
    own = config.own_modules
    if len(own) < 2:
        return list(own)
    alone = []
    for name in own:
        others = {other: OURS[other] for other in own if other != name}
        with contextlib.suppress(Exception):
            if find_leak(config.replace(**others), length) is not None:
                alone.append(name)
    return alone or list(own)


@torch.no_grad()
def shake(model: OLMo) -> OLMo:
    """Moves every parameter off its initial value, so that zero biases and unit scales show."""
    for name, p in model.named_parameters():
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def _leak(config: ModelConfig) -> Leak | None:
    model = shake(OLMo(config, seed=0)).eval()
    length, draw = config.max_sequence_length, torch.Generator().manual_seed(0)
    ids, others = torch.randint(0, config.vocab_size, (2, 2, length), generator=draw)
    before = _logits(model, ids)
    rounding = ROUNDING * float(before.abs().max())
    again = _difference(_logits(model, ids), before)
    if not again <= rounding:
        raise ArithmeticError(f"two passes over the same tokens differ by {again:.1e}")
    embedded = model.transformer["wte"](ids)
    embedded = embedded * (1 + JITTER * torch.randn(embedded.shape, generator=draw))
    rounding = max(rounding, MARGIN * _difference(_logits(model, ids, embedded), before))
    leaks = []
    # No round numbers: a module that looks ahead within parts of the sequence is caught.
    for changed in dict.fromkeys((length // 5 + 1, length // 2 + 3, length - 1)):
        replaced = torch.cat((ids[:, :changed], others[:, changed:]), 1)
        change = (_logits(model, replaced) - before).abs().amax((0, 2))
        most, position = change[:changed].max(0)
        size = float(most / change.max())
        if float(most) > rounding and size > SMALLEST:
            leaks.append(Leak(position=int(position), changed=changed, size=size))
    return max(leaks, key=lambda leak: leak.size, default=None)


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def _logits(
    model: OLMo, ids: Int[Tensor, "b t"], embeddings: Float[Tensor, "b t d"] | None = None
) -> Float[Tensor, "b t v"]:
    torch.manual_seed(0)  # a module that draws even now draws the same each time
    logits = model(ids, input_embeddings=embeddings).logits
    if not logits.isfinite().all():
        raise ArithmeticError("outputs on random weights are not finite")
    return logits


def _small(config: ModelConfig, length: int) -> ModelConfig:
    """With a kernel that any CPU has."""
    ours = config.attention_backend in ("auto", "sdpa", "math") and not config.flash_attention
    return config.replace(
        max_sequence_length=min(max(length, SHORTEST), LONGEST),
        flash_attention=False,
        attention_backend=config.attention_backend if ours else "sdpa",
    )


def _at_its_width(config: ModelConfig, length: int) -> ModelConfig | None:
    """Two layers and few tokens, for modules that take one width alone; None: it is too large."""
    if not is_uniform(config) or config.foundation_layers is not None:
        return None
    few = config.replace(
        n_layers=min(config.n_layers, 2),
        block_group_size=1,
        vocab_size=64,
        embedding_size=None,
        eos_token_id=0,
        pad_token_id=0,
        init_device=None,
    )
    weights = few.n_layers * few.d_model * (4 * few.d_model + 2 * few.hidden_size)
    return _small(few, length) if weights <= LARGEST else None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Generators are put back; nothing is compiled, as a second shape would make a trial's code
    that of shapes that vary.
    """
    dynamo = sys.modules.get("torch._dynamo")
    loaded = type(dynamo) is ModuleType  # a stand-in is not
    drawn, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(torch.no_grad())
            if loaded:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(numbers)  # noqa: NPY002
