"""Which kernel computes attention, decided without torch: for a run, for a plan, in each pass.

| kernel | what it is                           | where           | serves                  |
|--------|--------------------------------------|-----------------|-------------------------|
| math   | matmul, softmax, matmul              | anywhere        | everything              |
| sdpa   | torch's scaled_dot_product_attention | anywhere        | everything; windows,    |
|        |                                      |                 | documents and biases as |
|        |                                      |                 | a table t x t           |
| flash  | the flash-attn package               | CUDA, 16 bits   | windows, documents,     |
|        |                                      |                 | dropout                 |
| varlen | torch.nn.attention.varlen            | CUDA, 16 bits   | windows, documents      |
| flex   | torch's FlexAttention, compiled      | CUDA; on a CPU, | windows, documents,     |
|        |                                      | forward only    | ALiBi                   |

QK-norm and RoPE come before the kernel, so all of them serve these. `auto` takes, on a CPU, what
was measured to be fastest (docs/performance.md), and on CUDA sdpa, whose own flash back-end serves
plain causal attention; where that would need a table, varlen or flex. It never takes flash: an
extra package that is there on one machine and not on the next would change bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ablate.errors import ConfigError
from ablate.model.config import ModelConfig
from ablate.model.kernel_case import Case, layer_cases

__all__ = ["Choice", "choose", "choose_all", "objection", "refuse", "requested", "summary"]

SHORT = 512
"""Up to this length math beats sdpa in bfloat16, on a CPU with bfloat16 instructions."""
ONLY_CUDA = ("flash", "varlen")
"""Kernels that are not even there on a CPU."""
LARGEST_HEAD = 256
SMALLEST_FLEX_HEAD = 16
FLEX_BLOCK = 128
"""Queries, and keys, of a block that flex passes over or not (torch's default)."""


@dataclass(frozen=True)
class Choice:
    kernel: str
    reason: str
    refused: str | None = None
    """The kernel that was asked for and cannot serve."""


def requested(config: ModelConfig) -> tuple[str, str, Any]:
    """The kernel asked for, and the field and value that ask for it."""
    if config.flash_attention:
        return "flash", "model.flash_attention", True
    return config.attention_backend, "model.attention_backend", config.attention_backend


def choose(config: ModelConfig, case: Case) -> Choice:
    """The kernel for `case`: the one asked for, where it can serve, or by the rule of `auto`."""
    if config.block_type == "llama":
        return Choice("math", "the llama block spells its softmax out")
    name, _, _ = requested(config)
    if name == "auto":
        return _auto(case)
    why = objection(name, case)
    if why is None:
        return Choice(name, "asked for")
    return Choice("sdpa", f"{name} {why}", refused=name)


def refuse(config: ModelConfig, case: Case) -> None:
    """Raises ConfigError where the kernel that is asked for cannot serve `case` in some layer."""
    name, field, value = requested(config)
    if config.block_type == "llama" or name == "auto":
        return
    for layer in dict.fromkeys(layer_cases(config, case)):
        why = objection(name, layer)
        if why is not None:
            remedy = "Use attention=auto, which takes the fastest that can, or attention=sdpa"
            raise ConfigError(field, value, f"{name} {why}", remedy)


def objection(kernel: str, case: Case) -> str | None:
    """Why `kernel` cannot serve `case`; None: it can."""
    if kernel in ("math", "sdpa"):
        return None
    if case.softmax not in (None, "fp32"):
        return f"keeps its softmax in float32, which is told to be in {case.softmax}"
    if case.masked:
        return f"takes no mask or bias of one pass ({case.masked})"
    found = _objection_of_flex(case) if kernel == "flex" else _objection_of_flash(kernel, case)
    if found is None and case.head_dim > LARGEST_HEAD and case.device != "cpu":
        return f"has heads of at most {LARGEST_HEAD}, and they are {case.head_dim}"
    return found


def _objection_of_flash(kernel: str, case: Case) -> str | None:
    if case.device != "cuda" and kernel in ONLY_CUDA:
        return f"runs on CUDA only, not on {case.device}"
    if case.dtype == "fp32":
        return "takes bfloat16 and float16 only, and the precision is fp32"
    if case.bias is not None:
        return f"takes no position bias ({case.bias})"
    if kernel == "varlen":
        if not case.varlen:
            return "needs torch.nn.attention.varlen, which this torch has not"
        if case.dropout and case.backward:
            return f"has no dropout, and attention_dropout is {case.dropout:g}"
        if case.head_dim % 8:
            return f"has heads of a multiple of 8, and they are {case.head_dim}"
    return None


def _objection_of_flex(case: Case) -> str | None:
    if case.device not in ("cpu", "cuda"):
        return f"runs on CUDA, not on {case.device}"
    if case.device == "cpu" and case.backward:
        return "has no backward pass on a CPU"
    if case.device == "cuda" and not case.triton:
        return "is compiled by Triton on CUDA, which is not installed"
    if case.device == "cuda" and case.head_dim < SMALLEST_FLEX_HEAD:
        return f"has heads of at least {SMALLEST_FLEX_HEAD} on CUDA, and they are {case.head_dim}"
    if case.bias not in (None, "alibi"):
        return f"sums the gradient of a trained position bias ({case.bias}) in no fixed order"
    if case.dropout and case.backward:
        return f"has no dropout, and attention_dropout is {case.dropout:g}"
    return None


def _auto(case: Case) -> Choice:
    if case.device == "cpu":
        return _auto_on_cpu(case)
    needs = [
        name
        for name, there in (
            ("a window", case.window),
            ("documents", case.documents),
            (f"position bias ({case.bias})", case.bias is not None),
            (f"{case.masked}", case.masked is not None),
        )
        if there
    ]
    if case.device != "cuda" or not needs:
        return Choice("sdpa", "plain causal attention" if not needs else f"on {case.device}")
    reasons = {name: objection(name, case) for name in ("varlen", "flex")}
    for name, why in reasons.items():
        if why is None:
            return Choice(name, f"{' and '.join(needs)} without a table")
    because = "; ".join(f"{name} {why}" for name, why in reasons.items())
    return Choice("sdpa", f"{' and '.join(needs)} as a table: {because}")


def _auto_on_cpu(case: Case) -> Choice:
    if case.dtype != "bf16":
        return Choice("sdpa", "the fastest on a CPU")
    if case.low_products is None:
        known = f"math up to {SHORT} tokens where the CPU has bfloat16 instructions, else sdpa"
        return Choice("math or sdpa" if case.length <= SHORT else "sdpa", known)
    if case.low_products and case.length <= SHORT:
        return Choice("math", f"the fastest in bfloat16 up to {SHORT} tokens")
    if case.low_products:
        return Choice("sdpa", f"the fastest in bfloat16 over {SHORT} tokens")
    return Choice("sdpa", "the fastest on a CPU without bfloat16 instructions")


def choose_all(config: ModelConfig, case: Case) -> list[Choice]:
    """Of each layer, by its own window and size of heads; the rest is that of `case`."""
    layers = layer_cases(config, case)
    chosen = {layer: choose(config, layer) for layer in set(layers)}
    return [chosen[layer] for layer in layers]


def summary(choices: Iterable[Choice]) -> dict[str, str]:
    """Kernel to reason, the most used first; with the number of layers where there are several."""
    counts: dict[Choice, int] = {}
    for choice in choices:
        counts[choice] = counts.get(choice, 0) + 1
    ordered = sorted(counts, key=lambda choice: (-counts[choice], choice.kernel))
    several = len(ordered) > 1
    found: dict[str, str] = {}
    for choice in ordered:
        reason = f"{counts[choice]} layers: {choice.reason}" if several else choice.reason
        found[choice.kernel] = (
            f"{found[choice.kernel]}; {reason}" if choice.kernel in found else reason
        )
    return found
