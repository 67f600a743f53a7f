"""Which kernel computes the attention of a trial's steps: refused, or chosen and told."""

from __future__ import annotations

import torch

from ablate.config.schema import TrialConfig
from ablate.model import ModelConfig
from ablate.model.here import known
from ablate.model.kernel_case import training_case
from ablate.model.kernels import SHORT, choose_all, refuse, summary

__all__ = ["attention_of"]


def attention_of(trial: TrialConfig, config: ModelConfig, device: torch.device) -> dict[str, str]:
    """Kernel to the reason for it; more than one where layers differ.

    Raises:
        ConfigError: the kernel that is asked for cannot serve the trial here.
    """
    case = training_case(trial, config, device.type, **known())
    refuse(config, case)
    found = summary(choose_all(config, case))
    shorter = case.device == "cpu" and case.dtype == "bf16" and case.low_products
    if trial.batching.name == "dynamic" and shorter and "sdpa" in found and case.length > SHORT:
        found["math"] = f"batches of up to {SHORT} tokens"
    return found
