"""Several processes for one trial, and what they need of its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ablate.config.schema.training import TrainConfig
from ablate.config.typed import check_types, require
from ablate.errors import ConfigError

__all__ = ["EVERY", "STRATEGIES", "ParallelConfig"]

EVERY = {"one_in_two": 2, "one_in_three": 3, "one_in_four": 4, "one_in_five": 5}
"""Strategies that take each nth block."""

STRATEGIES = (
    "by_block",
    "by_block_and_size",
    "by_block_group",
    "by_block_group_and_size",
    "size_based",
    *EVERY,
)
"""OLMo's, of wrapping modules for FSDP."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    name: Literal["none", "ddp", "fsdp", "hsdp"] = "none"
    """ddp: every process has the whole model; fsdp: a part of each tensor; hsdp: a part, and
    several groups of processes the whole. One process alone trains as with `none`.
    """
    wrapping_strategy: str | None = "by_block"
    """fsdp, hsdp: what is gathered at a time, by OLMo's strategies; null: the whole model."""
    shard_size: int | None = None
    """hsdp: processes that share one copy of the weights; null: those of a node."""
    grad_sync_mode: Literal["batch", "micro_batch"] = "batch"
    """OLMo's name, with fsdp and hsdp: when gradients are divided. batch: at the last micro-batch,
    until when each process keeps those of all weights; micro_batch: at each, with as many messages.
    """
    timeout: int = 600
    """Seconds that a process waits for the others before it gives them up for dead."""

    def __post_init__(self) -> None:
        check_types(self, "parallel")
        v = self.shard_size
        require(v is None or v >= 1, "parallel.shard_size", v, "must be at least 1, or null")
        v, known = self.wrapping_strategy, ", ".join(STRATEGIES)
        fits = v is None or v in STRATEGIES
        require(fits, "parallel.wrapping_strategy", v, f"must be one of {known}, or null")
        v = self.grad_sync_mode
        if v != "batch" and not self.divides:
            reason = f"divides gradients, and parallel={self.name} does not"
            remedy = "Set batch, or parallel=fsdp"
            raise ConfigError("parallel.grad_sync_mode", v, reason, remedy)
        require(self.timeout >= 1, "parallel.timeout", self.timeout, "must be at least 1 second")

    @property
    def divides(self) -> bool:
        """Whether weights are divided among processes."""
        return self.name in ("fsdp", "hsdp")

    def check(self, train: TrainConfig, processes: int) -> None:
        """Refuses what cannot be divided among so many processes.

        Raises:
            ConfigError: naming the field.
        """
        if processes == 1:
            return
        if self.name == "none":
            reason = f"trains in one process, so {processes} would each train the whole of it"
            remedy = "Set parallel=ddp, or start one process (cluster.pack shares GPUs)"
            raise ConfigError("parallel.name", self.name, reason, remedy)
        if train.device not in ("auto", "cpu", "cuda"):
            reason = f"names one device for {processes} processes"
            raise ConfigError("train.device", train.device, reason, "Set it to auto, cuda or cpu")
        size = self.shard_size if self.name == "hsdp" else None
        if size is not None and processes % size:
            reason, remedy = f"does not divide {processes} processes", "Set a divisor of it"
            raise ConfigError("parallel.shard_size", size, reason, remedy)
        field = "batch_size" if train.micro_batch_size is None else "micro_batch_size"
        rows = getattr(train, field)
        if rows % processes:
            below = rows // processes * processes
            nearest = f"{below} or {below + processes}" if below else f"{processes}"
            reason = f"cannot be divided among {processes} processes"
            raise ConfigError(f"train.{field}", rows, reason, f"Set it to {nearest}")
