"""In which number type a step computes, on CPU as on GPU (upstream ignores it on a CPU)."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from ablate.config.schema import PrecisionConfig

__all__ = ["MIN_SCALE", "Precision"]

MIN_SCALE = 2.0**-14
"""fp16's smallest normal number: a gradient that overflows at this scale is truly infinite."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp16_protected": torch.float16}


class Precision:
    """fp32, autocast to bf16 or fp16 (fp16 with a gradient scaler), or weights and all in bf16.

    fp16 computes norms, softmax and the loss in float16 too; fp16_protected keeps them in float32
    (see `ablate.model.protection`).
    """

    def __init__(self, config: PrecisionConfig, device: torch.device) -> None:
        self.config = config
        self.device, self.autocast_type = device, AUTOCAST.get(config.name)
        self.weights = torch.bfloat16 if config.name == "pure_bf16" else torch.float32
        self.scaler: torch.amp.GradScaler | None = None
        self.halves = self.autocast_type == torch.float16
        if self.halves:
            self.scaler = torch.amp.GradScaler(device.type, init_scale=config.initial_scale)

    def prepare(self, model: nn.Module) -> nn.Module:
        if self.halves:
            from ablate.model.protection import protect

            protected = self.config.name == "fp16_protected"
            layers, fused = self.config.foundation_layers, self.config.fused_norms
            protect(model, protected=protected, foundation_layers=layers, fused=fused)  # type: ignore[arg-type]
        return model.to(device=self.device, dtype=self.weights)

    @property
    def protects_loss(self) -> bool:
        """Whether the loss is computed in float32; it belongs to no foundation."""
        return not self.halves or (
            self.config.name == "fp16_protected" and self.config.foundation_layers is None
        )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Wrap forward passes in it, not the loss."""
        if self.autocast_type is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_type)

    def reading(self) -> contextlib.AbstractContextManager[Any]:
        """Wrap passes after training in it, which compute in the type of the weights.

        But not where norms hand on float16: only autocast multiplies that by float32 weights.
        """
        return contextlib.nullcontext() if self.protects_loss else self.autocast()

    # ---- the gradient scaler, where there is one

    @property
    def scale(self) -> float:
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale(self, optimiser: Any) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(optimiser)

    def update(self) -> None:
        """The next step's scale: halved after an overflow, doubled after 2,000 steps without."""
        if self.scaler is not None:
            self.scaler.update()

    def may_retry(self, loss: float) -> bool:
        """Whether a gradient that is not finite may be an overflow that a smaller scale cures.

        Never of a loss that is not finite itself: it is computed before anything is scaled.
        """
        return self.scaler is not None and math.isfinite(loss) and self.scale > MIN_SCALE

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler is not None:
            self.scaler.load_state_dict(state)
