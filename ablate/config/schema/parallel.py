"""Several processes for one trial, and what they need of its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ablate.config.schema.training import TrainConfig
from ablate.config.typed import check_types, require
from ablate.errors import ConfigError

__all__ = ["ParallelConfig"]


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    name: Literal["none", "ddp"] = "none"
    """ddp: every process has the whole model. One process alone trains as with `none`."""
    timeout: int = 600
    """Seconds that a process waits for the others before it gives them up for dead."""

    def __post_init__(self) -> None:
        check_types(self, "parallel")
        require(self.timeout >= 1, "parallel.timeout", self.timeout, "must be at least 1 second")

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
        field = "batch_size" if train.micro_batch_size is None else "micro_batch_size"
        rows = getattr(train, field)
        if rows % processes:
            below = rows // processes * processes
            nearest = f"{below} or {below + processes}" if below else f"{processes}"
            reason = f"cannot be divided among {processes} processes"
            raise ConfigError(f"train.{field}", rows, reason, f"Set it to {nearest}")
