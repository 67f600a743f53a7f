"""What this machine and this torch have, for the choice of a kernel."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch

from ablate.model.attention import multiplies_bfloat16
from ablate.model.config import ModelConfig
from ablate.model.kernel_case import Case, build_case

__all__ = ["case_here", "instructions", "known"]

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


def case_here(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    length: int,
    *,
    documents: bool = False,
    dropout: float = 0.0,
    softmax: torch.dtype | None = None,
    backward: bool | None = None,
) -> Case:
    """What attention of rows of `length` tokens asks of a kernel here.

    `backward` is whether gradients are wanted; None: as torch is set.
    """
    return build_case(
        config,
        device=device.type,
        dtype=TYPES.get(dtype, "fp32"),
        length=length,
        documents=documents,
        backward=torch.is_grad_enabled() if backward is None else backward,
        dropout=dropout,
        softmax=None if softmax is None else TYPES.get(softmax, "fp32"),
        **known(),
    )


def known() -> dict[str, Any]:
    """The fields of Case that depend on the machine."""
    return {
        "low_products": multiplies_bfloat16(),
        "varlen": _is_there("torch.nn.attention.varlen"),
        "triton": _is_there("triton"),
    }


def instructions() -> str:
    """Those of this CPU, as far as torch's kernels and the choice among them depend on them."""
    low = " with bfloat16" if multiplies_bfloat16() else ""
    return torch.backends.cpu.get_cpu_capability() + low


@functools.cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
