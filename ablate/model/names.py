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
    "NORM_SLOTS",
    "POSITIONS",
]

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu", "geglu", "reglu")
GATED = ("swiglu", "geglu", "reglu")
NORMS = ("default", "low_precision", "rms")
NORM_SLOTS = (
    "attn_norm", "ff_norm", "attn_norm_after", "ff_norm_after", "q_norm", "k_norm", "ln_f",
    "emb_norm",
)  # fmt: skip
"""Where norms stand in the model, so that a user's own class in their place is recognised too."""
POSITIONS = ("learned", "sinusoidal", "hybrid", "relative", "none")
INITS = ("normal", "mitchell", "full_megatron", "gpt2", "llama", "llama_depth")
BLOCKS = ("sequential", "llama")
ATTENTION_BACKENDS = ("auto", "sdpa", "math", "flash", "varlen", "flex")
