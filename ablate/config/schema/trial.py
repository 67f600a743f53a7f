"""The configuration of one trial, whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.config.schema.batching import BatchingConfig
from ablate.config.schema.cache import CacheConfig
from ablate.config.schema.cluster import ClusterConfig
from ablate.config.schema.data import DataConfig
from ablate.config.schema.evaluation import EvaluateConfig
from ablate.config.schema.optimisation import ClipConfig, OptimConfig, ScheduleConfig
from ablate.config.schema.parallel import ParallelConfig
from ablate.config.schema.running import TrackConfig
from ablate.config.schema.spikes import SpikesConfig
from ablate.config.schema.training import LossConfig, PrecisionConfig, TrainConfig
from ablate.config.sources import SOURCES
from ablate.config.typed import build, require
from ablate.errors import ConfigError

__all__ = ["TrialConfig"]


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
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    spikes: SpikesConfig = field(default_factory=SpikesConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        require(
            0 <= self.seed < 2**63, "seed", self.seed, "must be a whole number from 0 to 2^63 - 1"
        )
        # An unset variable of a script; the path "" would be the current folder.
        filled = bool(self.runs_dir.strip())
        require(filled, "runs_dir", self.runs_dir, "is empty", "Name a folder, or leave it out")
        if self.study is not None:
            ok = bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}", self.study))
            reason = "must be a plain folder name (a-z, A-Z, 0-9 and . _ + -; at most 200)"
            require(ok, "study", self.study, reason)
        self._check_foundations()
        self._check_batching()
        self._check_cache()
        if self.train.compile is True and self.model.get("norm_noise"):
            reason = "draws noise from generators of its own, which train.compile=true cannot trace"
            raise ConfigError(
                "model.norm_noise", self.model["norm_noise"], reason, "Set train.compile=false"
            )
        if self.train.compile_mode != "default":
            self._check_graphs()
        if self.precision.name.startswith("fp16"):
            self._check_half()
        self._check_processes()
        if self.parallel.divides:
            self._check_divided()

    def _check_foundations(self) -> None:
        """No more blocks than the model has, where it says how many."""
        layers = self.model.get("n_layers")
        for name in ("schedule", "precision"):
            blocks = getattr(self, name).foundation_layers
            few = blocks is None or not isinstance(layers, int) or blocks <= layers
            reason = f"exceeds model.n_layers={layers}"
            require(few, f"{name}.foundation_layers", blocks, reason, "Null is all of them")

    def _check_batching(self) -> None:
        """What would be wrong, or without effect, with rows of whole documents."""
        name = self.batching.name
        if name == "concat":
            return
        if self.data.document_masking:
            reason = f"batching={name} keeps attention inside documents anyway"
            raise ConfigError("data.document_masking", True, reason, "Set it to false")
        if self.train.filter_repetitions:
            reason = f"takes the padding of batching={name} for a repetition"
            raise ConfigError("train.filter_repetitions", True, reason, "Set it to false")
        if name == "dynamic" and self.parallel.name != "none":
            reason = "has as many rows as fit the budget, which cannot be divided among processes"
            raise ConfigError("batching.name", name, reason, "Use padded or packed")

    def _check_graphs(self) -> None:
        """CUDA graphs are of one shape, and of one process."""
        for name, value, plain in (
            ("batching.name", self.batching.name, self.batching.name != "dynamic"),
            ("parallel.name", self.parallel.name, self.parallel.name == "none"),
        ):
            reason = "does not go with the CUDA graphs of train.compile_mode=reduce-overhead"
            require(plain, name, value, reason, "Set train.compile_mode=default")

    def _check_half(self) -> None:
        """What protects itself, or does not, whatever the precision says."""
        model, remedy = self.model, "Use precision=fp16_protected, or attention=auto"
        flash = model.get("flash_attention") is True
        backend = "flash" if flash else model.get("attention_backend")
        if self.precision.leaves_unprotected and backend in ("flash", "sdpa", "varlen", "flex"):
            field = "model.flash_attention" if flash else "model.attention_backend"
            reason = "is a kernel with a softmax in float32, which this precision leaves in float16"
            raise ConfigError(field, True if flash else backend, reason, remedy)
        if self.precision.name == "fp16_protected" and (
            model.get("layer_norm_type") == "low_precision"
        ):
            reason = "computes in float16 what precision=fp16_protected keeps in float32"
            other = "Use norm=layer, or precision=fp16"
            raise ConfigError("model.layer_norm_type", "low_precision", reason, other)

    def _check_cache(self) -> None:
        """What could only be refused after the training."""
        cache, name, model = self.cache, self.cache.name, self.model
        if not cache.measures:
            return
        if self.parallel.name != "none":
            field, value, off = "cache.name", name, "none"
            if name == "none":
                field, value, off = "cache.preheat", cache.preheat, 0
            reason, remedy = "is measured in one process", f"Set parallel=none, or {field}={off}"
            raise ConfigError(field, value, reason, remedy)
        scheme = model.get("position") or ("alibi" if model.get("alibi") else "")
        longest = model.get("max_sequence_length") or 1024
        learned = scheme.startswith(("learned", "hybrid")) or not (scheme or model.get("rope"))
        reason = f"exceeds model.max_sequence_length={longest}, and positions are learned"
        if cache.preheat and learned and cache.prompt_tokens > longest:
            remedy = "Lower it, or use position=rope"
            raise ConfigError("cache.prompt_tokens", cache.prompt_tokens, reason, remedy)
        if name == "none":
            return
        if scheme in ("alibi", "relative") or ":" in scheme:
            gaps = f"has gaps, and position={scheme} goes by index, which evictions shift"
            remedy = "Use position=rope, sinusoidal, learned or none"
            raise ConfigError("cache.name", name, gaps, remedy)
        if learned and cache.tokens > longest:
            raise ConfigError("cache.tokens", cache.tokens, reason, "Use position=rope")

    def _check_processes(self) -> None:
        """SLURM starts one process a GPU, and one a node where no GPU is asked for."""
        c = self.cluster
        if c.name != "slurm":
            return
        if self.parallel.name == "none":
            if c.nodes > 1:
                reason = "a trial trains in one process, so further nodes would idle"
                raise ConfigError(
                    "cluster.nodes", c.nodes, reason, "Set cluster.nodes=1, or parallel=ddp"
                )
            if c.gpus > c.pack:
                reason = "a trial trains on one GPU, so further ones would idle"
                remedy = f"Set cluster.gpus=1, parallel=ddp, or share: cluster.pack={c.gpus}"
                raise ConfigError("cluster.gpus", c.gpus, reason, remedy)
        elif c.pack > 1 and (c.nodes > 1 or c.gpus > c.pack):
            reason = "trials that share an allocation train on one GPU each"
            raise ConfigError("cluster.pack", c.pack, reason, "Set cluster.pack=1")
        self.parallel.check(self.train, c.processes)

    def _check_divided(self) -> None:
        """What would be wrong, or silently without effect, with divided weights."""
        name, remedy = self.parallel.name, "Use parallel=ddp"
        if self.optim.name == "muon":
            reason = f"needs whole matrices, and parallel={name} divides them"
            raise ConfigError("optim.name", "muon", reason, remedy)
        if self.precision.name.startswith("fp16"):
            reason = f"scales gradients by what one process sees of them (parallel={name})"
            other = f"Use bf16, or {remedy[4:]}"
            raise ConfigError("precision.name", self.precision.name, reason, other)
        if self.clip.name in ("percentile", "agc"):
            reason = f"measures whole tensors, and parallel={name} divides them"
            other = "Use clip=percentile_history, which needs their norms alone, or parallel=ddp"
            raise ConfigError("clip.name", self.clip.name, reason, other)
        if self.spikes.name == "rewind":
            reason = f"keeps copies of whole weights in memory, which parallel={name} is to avoid"
            raise ConfigError("spikes.name", "rewind", reason, remedy)
        if self.train.compile is True:
            reason = f"is not there yet with parallel={name}"
            raise ConfigError("train.compile", True, reason, f"Set it to false, or {remedy[4:]}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrialConfig:
        """A resolved configuration tree; `sweep` and `sources` are left to the planner."""
        return build(cls, {k: v for k, v in values.items() if k not in ("sweep", SOURCES)})
