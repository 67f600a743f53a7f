"""The typed configuration of one trial, section by section; `conf/train.yaml` shows every key
with its default.

`model` stays a mapping here: `ablate.model.config.ModelConfig` gives it its type (it lies one
layer up).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ablate.config.typed import build, check_types, require
from ablate.errors import ConfigError

__all__ = [
    "ClipConfig",
    "ClusterConfig",
    "DataConfig",
    "LossConfig",
    "OptimConfig",
    "PrecisionConfig",
    "ScheduleConfig",
    "TrackConfig",
    "TrainConfig",
    "TrialConfig",
    "amount",
]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    corpus: str | None = "kjv"
    """A named corpus (kjv, asv, django_docs, botocore, stdlib); null where `path` or `dataset`
    is given.
    """
    path: str | list[str] | None = None
    """Text, JSONL or headerless token files, or folders of them."""
    dataset: str | None = None
    """A Hugging Face dataset name (needs the network and the `datasets` package)."""
    dataset_split: str = "train"
    text_field: str = "text"
    """The field of JSONL and dataset records that holds the text."""
    format: Literal["auto", "text", "jsonl", "tokens"] = "auto"
    dtype: Literal["uint8", "uint16", "uint32", "uint64"] | None = None
    """Of token files as they are; null: uint16 where the vocabulary fits, else uint32."""
    tokenizer: str = "bytes"
    """bytes, bpe, or the path of a tokenizer.json."""
    tokenizer_vocab_size: int = 4096
    """Vocabulary of a BPE trained on the training split (tokenizer=bpe)."""
    validation_fraction: float = 0.05
    """Share of documents held out; which ones depends on the documents alone."""
    validation_path: str | list[str] | None = None
    """Held-out files of your own instead."""
    cache_dir: str | None = None
    """Where prepared token files lie; null: $ABLATE_CACHE or ~/.cache/ablate."""
    document_masking: bool = False
    """Attention stays inside documents."""

    def __post_init__(self) -> None:
        check_types(self, "data")
        f = self.validation_fraction
        require(0 < f < 1, "data.validation_fraction", f, "must lie in (0, 1)")
        v = self.tokenizer_vocab_size
        require(
            v >= 257, "data.tokenizer_vocab_size", v, "must be at least 257 (256 bytes and EOS)"
        )
        sources = {"corpus": self.corpus, "path": self.path, "dataset": self.dataset}
        named = [k for k, v in sources.items() if v is not None]
        require(
            bool(named),
            "data.path",
            None,
            "there is no data",
            "Set data.corpus, data.path or data.dataset",
        )
        if self.path is not None or self.dataset is not None:
            require(
                self.path is None or self.dataset is None,
                "data.path",
                self.path,
                "contradicts data.dataset",
                "Set one of them to null",
            )


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
    compile: bool = False
    filter_repetitions: bool = False
    """Mask the labels of sequences with an n-gram (n <= 13) repeated 32 times or more (OLMo 2)."""

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


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    name: str = "adamw"
    """adamw, lion, muon, or an import path."""
    lr: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    decay_norm_and_bias: bool = False
    decay_embeddings: bool = False
    momentum: float = 0.95
    """Of Muon's matrices; its other parameters follow AdamW with `betas`."""

    def __post_init__(self) -> None:
        check_types(self, "optim")
        _one_of("optim.name", self.name, ("adamw", "lion", "muon"))
        ok = self.lr > 0 and math.isfinite(self.lr)
        require(ok, "optim.lr", self.lr, "must be greater than 0")
        require(len(self.betas) == 2, "optim.betas", list(self.betas), "must be two numbers")
        for b in self.betas:
            require(0 <= b < 1, "optim.betas", list(self.betas), "must lie in [0, 1)")
        require(self.eps > 0, "optim.eps", self.eps, "must be greater than 0")
        decay = self.weight_decay
        require(decay >= 0, "optim.weight_decay", decay, "must not be negative")
        require(0 <= self.momentum < 1, "optim.momentum", self.momentum, "must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    name: str = "cosine_with_warmup"
    """See `ablate.train.schedule`: OLMo's and OLMo-core's schedules by their names, or an import
    path.
    """
    warmup: str | int | float = 0.05
    """A fraction ("5%" or 0.05), a number of steps (100), or of tokens ("2M tokens")."""
    warmup_min_lr: float | None = None
    """Where warm-up starts; null: a tenth of the peak (OLMo); OLMo-core starts at 0."""
    alpha_f: float = 0.1
    """Final learning rate as a share of the peak."""
    t_max: int | None = None
    """Steps at which the decay ends; null: train.steps."""
    decay: str | int | float = 0.1
    """Length of the final decay of wsd and of the schedules with a tail, as `warmup`."""
    exponent: float = -0.51
    """Of power_lr."""
    lr_min: float | None = None
    """Where exponential starts (null: alpha_f times the peak), and where tails end (null: 0)."""
    periods: list[int] | None = None
    """Steps at which each period of wsds ends; null: one period."""
    period_lr_multipliers: list[float] | None = None
    """Peak of each period of wsds as a share of optim.lr; null: 1."""
    stages: list[dict[str, Any]] | None = None
    """Parts of composable and sequential (see `ablate.train.stages`)."""
    override_decay: dict[str, Any] | None = None
    """A decay that overrides the schedule: start, duration, shape, end_lr or end_lr_fraction."""

    def __post_init__(self) -> None:
        check_types(self, "schedule")
        require(0 <= self.alpha_f <= 1, "schedule.alpha_f", self.alpha_f, "must lie in [0, 1]")
        v = self.t_max
        require(v is None or v >= 1, "schedule.t_max", v, "must be at least 1, or null")
        for name in ("warmup_min_lr", "lr_min"):
            v = getattr(self, name)
            require(v is None or v >= 0, f"schedule.{name}", v, "must not be negative")
        for name in ("warmup", "decay"):
            amount(f"schedule.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class ClipConfig:
    name: str = "norm"
    """none, norm (global norm), ratio (each tensor against its own history), value, or an import
    path.
    """
    max_norm: float = 1.0
    max_ratio: float = 1.05
    max_value: float = 1.0
    warmup_steps: int = 0
    warmup_factor: float = 1.0
    """The limit is this many times higher during the first `warmup_steps`."""

    def __post_init__(self) -> None:
        check_types(self, "clip")
        _one_of("clip.name", self.name, ("none", "norm", "ratio", "value"))
        for name in ("max_norm", "max_ratio", "max_value", "warmup_factor"):
            v = getattr(self, name)
            require(
                v > 0,
                f"clip.{name}",
                v,
                "must be greater than 0",
                "Set clip=none to switch clipping off",
            )
        require(
            self.warmup_steps >= 0, "clip.warmup_steps", self.warmup_steps, "must not be negative"
        )


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    name: Literal["fp32", "bf16", "fp16", "pure_bf16"] = "fp32"
    """bf16 and fp16 are autocast (fp16 with a gradient scaler); pure_bf16 casts the weights too."""
    initial_scale: float = 65536.0
    """Of the fp16 gradient scaler."""

    def __post_init__(self) -> None:
        check_types(self, "precision")
        v = self.initial_scale
        require(v > 0, "precision.initial_scale", v, "must be greater than 0")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    z_loss: float = 0.0
    """Multiplier of logsumexp(logits)^2 (OLMo 2 states 1e-5)."""

    def __post_init__(self) -> None:
        check_types(self, "loss")
        require(self.z_loss >= 0, "loss.z_loss", self.z_loss, "must not be negative")


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    name: Literal["local", "wandb"] = "local"
    """Local files are always written; wandb mirrors them."""
    project: str = "ablate"
    entity: str | None = None
    mode: Literal["auto", "online", "offline"] = "auto"
    """auto: online where an API key is set, else offline."""
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_types(self, "track")


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    name: Literal["local"] = "local"
    workers: int | None = None
    """Trials at once; null: CPU cores // train.threads (or one a GPU)."""

    def __post_init__(self) -> None:
        check_types(self, "cluster")
        v = self.workers
        require(v is None or v >= 1, "cluster.workers", v, "must be at least 1, or null")


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """Everything that one training run needs, resolved."""

    seed: int = 0
    study: str | None = None
    """Name of the study's folder under `runs_dir`; null: `train`, or the sweep's name."""
    runs_dir: str = "runs"
    force: bool = False
    """Start a finished trial afresh; its old attempts are kept aside."""
    model: dict[str, Any] = field(default_factory=dict)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        require(
            0 <= self.seed < 2**63, "seed", self.seed, "must be a whole number from 0 to 2^63 - 1"
        )
        if self.study is not None:
            ok = bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.study))
            reason = "must be a plain folder name (letters, digits, . _ + -)"
            require(ok, "study", self.study, reason)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrialConfig:
        """A resolved configuration tree; a `sweep` section, if any, is left to the planner."""
        return build(cls, {k: v for k, v in values.items() if k != "sweep"})


def amount(
    name: str, value: str | int | float
) -> tuple[Literal["fraction", "steps", "tokens"], float]:
    """Reads a length: 0.05 or "5%" is a fraction, 100 is steps, "2M tokens" is tokens.

    Raises:
        ConfigError: naming the field `name`.
    """
    remedy = 'Write a fraction ("5%" or 0.05), a number of steps (100) or of tokens ("2M tokens")'
    if isinstance(value, str):
        text = value.strip()
        match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kKMGBT]?)\s*(%|tokens|steps)?", text)
        if not match:
            raise ConfigError(name, value, "cannot be read as a length", remedy)
        try:
            number = float(match[1])
        except ValueError:
            raise ConfigError(name, value, "cannot be read as a length", remedy) from None
        number *= {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}[match[2]]
        if match[3] == "%":
            kind, number = "fraction", number / 100
        elif match[3]:
            kind = match[3]
        else:
            kind = "fraction" if number < 1 and "." in match[1] else "steps"
    else:
        number = float(value)
        kind = "fraction" if isinstance(value, float) and value < 1 else "steps"
    if kind == "fraction":
        require(0 <= number <= 1, name, value, "as a fraction must lie in [0, 1]", remedy)
    require(number >= 0, name, value, "must not be negative", remedy)
    if kind == "steps":
        require(number == int(number), name, value, "as steps must be a whole number", remedy)
    return kind, number  # type: ignore[return-value]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    from ablate.config.typed import closest

    if value not in known and ":" not in value:
        raise ConfigError(name, value, "must be one of " + ", ".join(known), closest(value, known))
