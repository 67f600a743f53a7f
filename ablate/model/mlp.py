"""Activations. A gated one is fed twice its width: the linear half first, then the gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.imports import users_own
from ablate.model.config import ModelConfig
from ablate.model.variants import find

__all__ = ["ACTIVATIONS", "Activation", "Gated", "build_activation", "relu2"]


def relu2(x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """relu(x)² (arXiv 2109.08668)."""
    return F.relu(x).square()


def gelu_tanh(x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    """GELU in the tanh approximation, as GPT-2 computes it."""
    return F.gelu(x, approximate="tanh")


class Activation(nn.Module):
    """f(x), elementwise; `multiplier` is output width / input width."""

    multiplier = 1.0

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        return self.function(x)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


class Gated(Activation):
    """f(second half of x) · first half of x (GLU variants, arXiv 2002.05202)."""

    multiplier = 0.5

    def forward(
        self, x: Float[Tensor, "*b i"], gate: Float[Tensor, "*b i"] | None = None
    ) -> Float[Tensor, "*b o"]:
        """Of both halves in one tensor, or of the linear half and the gate."""
        linear, gate = x.chunk(2, dim=-1) if gate is None else (x, gate)
        return self.function(gate) * linear


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": lambda: Activation(F.gelu),
    "gelu_tanh": lambda: Activation(gelu_tanh),
    "relu": lambda: Activation(F.relu),
    "relu2": lambda: Activation(relu2),
    "silu": lambda: Activation(F.silu),
    "swiglu": lambda: Gated(F.silu),
    "geglu": lambda: Gated(F.gelu),
    "reglu": lambda: Gated(F.relu),
}


def build_activation(config: ModelConfig) -> tuple[nn.Module, int]:
    """The activation and the width of its output.

    An import path may name a module class (built without arguments; a `multiplier` attribute says
    how it changes the width) or a plain elementwise function.
    """
    found: Any = find(ACTIVATIONS, config.activation_type, "model.activation_type")
    own_function = config.activation_type not in ACTIVATIONS and not isinstance(found, type)
    with users_own("model.activation_type", config.activation_type):
        module = Activation(found) if own_function else found()
    return module, int(config.hidden_size * getattr(module, "multiplier", 1.0))
