"""A micro-batch on its way through a model, and what its attention asks of a kernel. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ablate.model.config import ModelConfig
from ablate.model.kernel_case import Case, build_case, number_types

__all__ = ["Pass", "plan_case"]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A micro-batch on its way through the model, in one process."""

    rows: int
    length: int
    """Tokens a row."""
    precision: str = "fp32"
    fused_norms: bool = True
    """False: norms in float16 keep what each of their operations does."""
    foundation_layers: int | None = None
    """fp16_protected: protects the embedding and so many of the lowest blocks only."""
    device: Literal["cpu", "cuda"] = "cuda"
    checkpointing: str | None = None
    documents: bool = False
    """Attention stays inside documents."""
    compiled: bool = False
    native: bool = True
    """False: a CPU without instructions for the type of the products, which keeps their operands
    in float32 (`ablate.model.linear.multiply`).
    """

    @property
    def positions(self) -> int:
        return self.rows * self.length

    @property
    def autocast(self) -> bool:
        return self.precision in ("bf16", "fp16", "fp16_protected")

    @property
    def product(self) -> int:
        """Bytes of a number that a matrix product gives."""
        return 4 if self.precision == "fp32" else 2

    @property
    def operand(self) -> int:
        """Bytes of a number that a matrix product keeps."""
        return self.product if self.native else 4

    @property
    def copies(self) -> bool:
        """Whether each product makes its own copies of its operands."""
        return self.autocast or (self.product == 2 and not self.native)

    @property
    def weight(self) -> int:
        """Bytes of a weight, of its gradient, and of each of its moments."""
        return 2 if self.precision == "pure_bf16" else 4

    @property
    def stream(self) -> int:
        """Bytes of a number of the residual stream: embeddings are not cast."""
        return self.weight

    @property
    def widens_norms(self) -> bool:
        """Whether norms are given their inputs in float32."""
        return self.precision == "fp16_protected"

    @property
    def unprotected(self) -> bool:
        """Whether some norms, some softmax and the loss are computed in float16."""
        return self.precision == "fp16" or self.foundation_layers is not None

    def of_layer(self, index: int | None) -> Pass:
        """As a layer sees it; -1: as the embedding does; None: as what follows the last layer."""
        if self.foundation_layers is None:
            return self
        inside = index is not None and index < self.foundation_layers
        name = "fp16_protected" if inside else "fp16"
        return replace(self, precision=name, foundation_layers=None)


def plan_case(c: ModelConfig, given: Pass) -> Case:
    """What attention asks of a kernel, in a layer without a window."""
    return build_case(
        c,
        device=given.device,
        length=given.length,
        documents=given.documents,
        low_products=given.native,
        **number_types(given.precision, unprotected=given.unprotected),
    )
