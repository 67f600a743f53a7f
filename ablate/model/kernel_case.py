"""What attention asks of a kernel, in a trial, a plan and a pass. No torch here.

One builder serves all three, so that a plan and a run choose by the same question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ablate.config.imports import is_import_path
from ablate.config.schema import TrialConfig
from ablate.model.config import ModelConfig
from ablate.model.widths import layer_configs

__all__ = [
    "Case",
    "bias_of",
    "build_case",
    "keeps_documents",
    "layer_cases",
    "number_types",
    "training_case",
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a kernel has to serve, in one layer of one pass."""

    device: str
    """cpu, cuda or mps."""
    dtype: str
    """In which products run: fp32, bf16 or fp16 (fp64 in tests)."""
    length: int
    """Queries of a row."""
    head_dim: int = 64
    """Of the layer: unequal widths have unequal heads."""
    window: bool = False
    """Whether the layer has a window narrower than its keys."""
    documents: bool = False
    bias: str | None = None
    """alibi, relative or own (a user's scheme): what is added to the logits by position."""
    masked: str | None = None
    """What else this pass says of who sees whom: a mask, a bias, keys from a cache."""
    backward: bool = True
    dropout: float = 0.0
    softmax: str | None = None
    """The type that the softmax is told to compute in (precision=fp16: float16); None: free."""
    low_products: bool | None = None
    """Whether this CPU has bfloat16 instructions; None: not known here."""
    varlen: bool = True
    """Whether this torch has torch.nn.attention.varlen ..."""
    triton: bool = True
    """... and what FlexAttention is compiled with on CUDA."""


def build_case(config: ModelConfig, *, dropout: float | None = None, **given: Any) -> Case:
    """Of a layer as wide as the model and without a window; `layer_cases` makes those of all.

    Args:
        config: the model.
        dropout: of attention; None: as in training.
        given: other fields of Case.
    """
    return Case(
        head_dim=config.head_dim,
        bias=bias_of(config),
        dropout=config.attention_dropout if dropout is None else dropout,
        **given,
    )


def layer_cases(config: ModelConfig, case: Case) -> list[Case]:
    """Of each layer, with its own window and size of heads; the rest is that of `case`."""
    found = []
    for index, layer in enumerate(layer_configs(config)):
        window = config.window(index)
        near = window is not None and window < case.length
        found.append(replace(case, window=near, head_dim=layer.head_dim))
    return found


def training_case(trial: TrialConfig, config: ModelConfig, device: str, **known: Any) -> Case:
    """What the training steps of a trial ask.

    Args:
        trial: its configuration.
        config: its model.
        device: cpu, cuda or mps.
        known: of this machine, as fields of Case.
    """
    return build_case(
        config,
        device=device,
        length=trial.train.sequence_length or config.max_sequence_length,
        documents=keeps_documents(trial.data.document_masking, trial.batching.name),
        **number_types(trial.precision.name, unprotected=trial.precision.leaves_unprotected),
        **known,
    )


def number_types(precision: str, *, unprotected: bool) -> dict[str, Any]:
    """The fields of Case that a precision decides.

    `unprotected` is whether some softmax is computed in float16.
    """
    if precision.startswith("fp16"):
        return {"dtype": "fp16", "softmax": "fp16" if unprotected else "fp32"}
    return {"dtype": "bf16" if "bf16" in precision else "fp32", "softmax": None}


def keeps_documents(masking: bool, batching: str) -> bool:
    """Whether batches say where documents end.

    A row of batching=padded or dynamic is one document with padding after it, which nothing sees.
    """
    return masking or batching == "packed"


def bias_of(config: ModelConfig) -> str | None:
    """alibi, relative or own, where the position scheme adds to the logits, or may do so."""
    scheme = config.position_scheme
    if is_import_path(scheme):
        return "own"
    return scheme if scheme in ("alibi", "relative") else None
