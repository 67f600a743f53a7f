"""How a trial is trained: budget, precision, loss."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ablate.config.typed import check_types, require

__all__ = ["LossConfig", "PrecisionConfig", "TrainConfig"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 200
    batch_size: int = 16
    """Sequences a step, over all devices."""
    micro_batch_size: int | None = None
    """Sequences a forward pass (gradient accumulation); null: the whole batch."""
    sequence_length: int | None = None
    """Tokens a sequence; null: model.max_sequence_length."""
    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda, or cuda:1."""
    threads: int = 1
    """CPU threads of the trial; the count changes bits, so it is part of the trial's identity."""
    checkpoint_every: int = 100
    """Steps between checkpoints; 0: only where the trial is stopped or ends."""
    keep_checkpoints: int = 1
    """Newest checkpoints that are kept; -1: all."""
    keep_final: bool = True
    """Keep the checkpoint of the last step when the trial is done."""
    validate_every: int = 0
    """Steps between validations; 0: at the end only."""
    validation_tokens: int | None = None
    """Validation tokens read, from the start of the split; null: all."""
    measure_every: int = 0
    """Steps between the slower measurements (attention logits, activations, weights); 0: never."""
    activation_checkpointing: str | None = None
    """OLMo's strategies: whole_layer, one_in_two, ..., fine_grained."""
    compile: bool | Literal["auto"] = False
    """auto: where the run is long enough to win it back (`ablate.model.compile_rule`)."""
    compile_mode: Literal["default", "reduce-overhead"] = "default"
    """torch.compile's. reduce-overhead: CUDA graphs, for models that are bound by launches. (Those
    that choose kernels by the clock are left out: two starts of a trial might choose differently.)
    """
    filter_repetitions: bool = False
    """Mask the labels of sequences with an n-gram (n <= 13) repeated 32 times or more (OLMo 2)."""
    check_causality: bool = True
    """Refuse a module of the user's own that reads later tokens; false: take it."""

    def __post_init__(self) -> None:
        check_types(self, "train")
        for name in ("steps", "batch_size", "threads"):
            v = getattr(self, name)
            require(v >= 1, f"train.{name}", v, "must be at least 1")
        for name in ("checkpoint_every", "validate_every", "measure_every"):
            v = getattr(self, name)
            require(v >= 0, f"train.{name}", v, "must not be negative", "Write 0 to switch it off")
        for name in ("validation_tokens", "micro_batch_size"):
            v = getattr(self, name)
            require(v is None or v >= 1, f"train.{name}", v, "must be at least 1, or null")
        v = self.sequence_length
        require(v is None or v >= 2, "train.sequence_length", v, "must be at least 2, or null")
        micro = self.micro_batch_size
        require(
            micro is None or self.batch_size % micro == 0,
            "train.micro_batch_size",
            micro,
            f"does not divide train.batch_size={self.batch_size}",
        )
        keep = self.keep_checkpoints
        require(
            keep == -1 or keep >= 1,
            "train.keep_checkpoints",
            keep,
            "must be at least 1, or -1 for all",
        )
        device_ok = bool(re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device))
        require(device_ok, "train.device", self.device, "must be auto, cpu, mps, cuda or cuda:N")
        if self.compile_mode != "default":
            self._check_graphs()

    def _check_graphs(self) -> None:
        """What would leave CUDA graphs without effect, or have one write over what another made."""
        field, mode, plain = "train.compile_mode", self.compile_mode, "Set it to default"
        reason = "is a mode of train.compile, which is off"
        require(self.compile is not False, field, mode, reason, "Set train.compile=true")
        reason = f"records CUDA graphs, which train.device={self.device} has none of"
        require(self.device not in ("cpu", "mps"), field, mode, reason, plain)
        reason = "keeps gradients where the next micro-batch would be computed"
        whole = self.micro_batch_size in (None, self.batch_size)
        require(whole, field, mode, reason, f"{plain}, or train.micro_batch_size=null")


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    name: Literal["fp32", "bf16", "fp16", "fp16_protected", "pure_bf16"] = "fp32"
    """bf16 and fp16 are autocast (fp16 with a gradient scaler); pure_bf16 casts the weights too.
    fp16_protected computes norms, softmax and the loss in float32, fp16 in float16 like all else.
    """
    initial_scale: float = 65536.0
    """Of the fp16 gradient scaler."""
    foundation_layers: int | None = None
    """fp16_protected: protects norms and softmax of the embedding and so many of the lowest blocks
    only, and not the loss; null: all.
    """
    fused_norms: bool = True
    """Norms in float16 are torch's kernels, which sum in float32; false: operation by operation,
    each result rounded to float16.
    """

    def __post_init__(self) -> None:
        check_types(self, "precision")
        v = self.initial_scale
        require(v > 0, "precision.initial_scale", v, "must be greater than 0")
        field, layers = "precision.foundation_layers", self.foundation_layers
        if layers is not None:
            require(layers >= 0, field, layers, "must not be negative", "0 is the embedding alone")
            reason = f"confines a protection that precision.name={self.name} does not have"
            remedy = "Set it to null, or use precision=fp16_protected"
            require(self.name == "fp16_protected", field, layers, reason, remedy)
        reason = f"spells out norms in float16, which precision.name={self.name} has none of"
        remedy = "Use precision=fp16, or confine the protection (precision.foundation_layers)"
        ok = self.fused_norms or self.leaves_unprotected
        require(ok, "precision.fused_norms", self.fused_norms, reason, remedy)

    @property
    def leaves_unprotected(self) -> bool:
        """Whether some softmax is computed in float16."""
        return self.name == "fp16" or self.foundation_layers is not None


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    z_loss: float = 0.0
    """Multiplier of logsumexp(logits)^2 (OLMo 2 states 1e-5)."""
    chunk: int = 0
    """Positions whose logits exist at one time, which bounds the memory of a large vocabulary; 0:
    all."""

    def __post_init__(self) -> None:
        check_types(self, "loss")
        require(self.chunk >= 0, "loss.chunk", self.chunk, "must not be negative", "0: all at once")
        require(self.z_loss >= 0, "loss.z_loss", self.z_loss, "must not be negative")
