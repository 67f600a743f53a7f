"""Distributed data parallelism: the whole model in every process, gradients summed."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ablate.config.schema import TrainConfig, TrialConfig
from ablate.data import IGNORED, Batch
from ablate.rundir import Attempt, TrialDir
from ablate.train import checkpoint
from ablate.train.checkpoint import Checkpoint
from ablate.train.parallel.alone import Alone
from ablate.train.parallel.pooling import pool
from ablate.train.parallel.team import Team

__all__ = ["Replicated"]


class Replicated(Alone):
    """Rank r of w takes the r-th part of every micro-batch, so that the micro-batches, and the sum
    over them, are those of one process.
    """

    def __init__(self, team: Team, config: TrialConfig) -> None:
        self.team, self.rank, self.world_size = team, team.rank, team.world_size
        self.ddp: DistributedDataParallel | None = None

    def forward(self, model: nn.Module) -> Callable[..., Any]:
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.ddp.register_comm_hook(None, summed)
        return self.ddp

    def synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        assert self.ddp is not None
        return contextlib.nullcontext() if last else self.ddp.no_sync()

    def rows(self, train: TrainConfig) -> Int64[np.ndarray, " n"]:
        micro = train.micro_batch_size or train.batch_size
        mine = np.arange(micro).reshape(self.world_size, -1)[self.rank]
        return (np.arange(0, train.batch_size, micro)[:, None] + mine).ravel()

    def micro_batch(self, train: TrainConfig) -> int | None:
        micro = train.micro_batch_size
        return None if micro is None else micro // self.world_size

    def share(self, batch: Batch) -> Batch:
        n = len(batch.input_ids)
        first, end = (n * r // self.world_size for r in (self.rank, self.rank + 1))
        if first == end:  # the model is run all the same: others may wait for that
            nothing = np.full_like(batch.labels[:1], IGNORED)
            return dataclasses.replace(_cut(batch, slice(1)), labels=nothing)
        return _cut(batch, slice(first, end))

    def restore(
        self, run: Any, trial: TrialDir, skip: Callable[[int, int, str], None]
    ) -> Checkpoint | None:
        """The one that the leader finds sound is read by all."""
        if self.leads:
            found = super().restore(run, trial, skip)
            self.tell(found and (found.attempt, found.step))
            return found
        place = self.tell(None)
        if place is None:
            return None
        attempt, step = place
        folder = Attempt(trial, attempt).checkpoint_path(step)
        found = checkpoint.read(folder, attempt, step, run.device)
        run.restore(found)
        return found

    def count(self, labels: int) -> int:
        return int(self.totals(labels)[0])

    def sum(self, losses: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        dist.all_reduce(losses)
        return losses

    def same(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        dist.broadcast(values, src=0)
        return values

    def totals(self, *values: float) -> tuple[float, ...]:
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return tuple(total.tolist())

    def pooled(self, values: dict[str, float]) -> dict[str, float]:
        mine = torch.tensor(list(values.values()), dtype=torch.float64)
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine)
        table = torch.stack(parts).numpy()
        return pool(dict(zip(values, table.T, strict=True)), self.weight_norm)

    def weight_norm(self, norms: Float[np.ndarray, " w"]) -> float:
        """Of a tensor, from the norms of what each process holds of it."""
        return float(norms[0])

    def tell(self, value: Any) -> Any:
        return self.team.tell(value)

    def device(self, name: str) -> torch.device | None:
        if name in ("auto", "cuda") and torch.cuda.is_available():
            return torch.device("cuda", self.team.local_rank)
        return None


def _cut(batch: Batch, rows: slice) -> Batch:
    return dataclasses.replace(
        batch,
        input_ids=batch.input_ids[rows],
        labels=batch.labels[rows],
        doc_lens=None if batch.doc_lens is None else batch.doc_lens[rows],
        max_doc_lens=None if batch.max_doc_lens is None else batch.max_doc_lens[rows],
        indices=batch.indices[rows],
    )


def summed(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's hook for a bucket of gradients: their sum, where DDP would take the mean.

    Each loss is divided by the labels of the whole batch already. Sums are taken in float32.
    """
    gradients = bucket.buffer()
    narrow = gradients.dtype != torch.float32
    wide = gradients.float() if narrow else gradients
    work = dist.all_reduce(wide, async_op=True)
    assert work is not None

    def finished(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        total = future.value()[0]
        return gradients.copy_(total) if narrow else total

    return work.get_future().then(finished)


summed.__annotations__ = typing.get_type_hints(summed)  # DDP asks for classes, not their names
