"""The names of the built-in variants, for whoever must know them without torch.

The tables beside the classes hold the same names; a test compares them.
"""

from __future__ import annotations

__all__ = [
    "ACTIVATIONS",
    "ATTENTION_BACKENDS",
    "BLOCKS",
    "GATED",
    "INITS",
    "NORMS",
    "POSITIONS",
]

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu", "geglu", "reglu")
GATED = ("swiglu", "geglu", "reglu")
NORMS = ("default", "low_precision", "rms")
POSITIONS = ("learned", "sinusoidal", "hybrid", "relative", "none")
INITS = ("normal", "mitchell", "full_megatron", "gpt2", "llama", "llama_depth")
BLOCKS = ("sequential", "llama")
ATTENTION_BACKENDS = ("auto", "sdpa", "math", "flash")
