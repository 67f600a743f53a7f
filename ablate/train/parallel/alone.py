"""What a training step asks of the processes of its trial, answered by one that is alone.

Every decision of the loop (skip, replace, diverge, stop, respond to a spike) is made from numbers
that passed through here, so they are the same in every process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.schema import TrainConfig
from ablate.data import Batch
from ablate.model import ModelConfig, OLMo
from ablate.rundir import Attempt, TrialDir
from ablate.train import checkpoint
from ablate.train.checkpoint import Checkpoint
from ablate.train.precision import Precision

__all__ = ["Alone"]

Rows = slice | np.ndarray


class Alone:
    """One process, one device: everything is here already."""

    rank = 0
    world_size = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the record."""
        return self.rank == 0

    # ---- the model

    def build(self, config: ModelConfig, seed: int, precision: Precision) -> nn.Module:
        """The model with its first weights, on its device (or devices)."""
        return precision.prepare(OLMo(config, init_params=True, seed=seed))

    def forward(self, model: nn.Module) -> Callable[..., Any]:
        """What a training step calls."""
        return model

    def synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around a micro-batch, the `last` of its batch or not."""
        return contextlib.nullcontext()

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those parts of parameters or gradients that lie here (sharing memory)."""
        return list(tensors)

    # ---- the batch

    def rows(self, train: TrainConfig) -> Rows:
        """Of a batch, this process's."""
        return slice(None)

    def micro_batch(self, train: TrainConfig) -> int | None:
        """Rows that this process takes of a micro-batch; None: all that it has."""
        return train.micro_batch_size

    def share(self, batch: Batch) -> Batch:
        """Rows of a validation batch; never none, but some may have no labels."""
        return batch

    def count(self, labels: int) -> int:
        """Real labels of the whole batch."""
        return labels

    # ---- checkpoints (`run` is an `ablate.train.run.Run`)

    def save(
        self,
        run: Any,
        attempt: Attempt,
        step: int,
        *,
        weightless: bool,
        before_commit: Callable[[], None],
    ) -> None:
        """Collective. `weightless`: only the fact that the step was done."""
        if self.leads:
            checkpoint.save(
                attempt,
                step,
                model=None if weightless else run.model_state(),
                train={} if weightless else run.train_state(),
                before_commit=before_commit,
            )

    def restore(
        self, run: Any, trial: TrialDir, skip: Callable[[int, int, str], None]
    ) -> Checkpoint | None:
        """Collective: puts the newest sound checkpoint into `run`, and returns it.

        Args:
            run: as it was assembled.
            trial: of which every attempt is looked at.
            skip: told attempt, step and reason of each that is damaged.
        """
        found = checkpoint.read_newest(trial, run.device, skip)
        if found is not None:
            run.restore(found)
        return found

    # ---- numbers

    def sum(self, losses: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Over the processes."""
        return losses

    def norms(self, norms: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Of whole tensors, from those of the parts that lie here."""
        return norms

    def same(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Numbers to decide by, equal bit for bit in every process."""
        return values

    def totals(self, *values: float) -> tuple[float, ...]:
        """Sums over the processes, in double precision."""
        return values

    def pooled(self, values: dict[str, float]) -> dict[str, float]:
        """Measurements of the whole micro-batch, from those of every process's part."""
        return values

    def tell(self, value: Any) -> Any:
        """The leader's value."""
        return value

    def device(self, name: str) -> torch.device | None:
        """This process's of several; None: as the configuration says."""
        return None
