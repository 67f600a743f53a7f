"""Held-out loss: every validation token but the first is predicted exactly once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ablate.data import Batch
from ablate.train.batch import to_tensors
from ablate.train.run import Run

__all__ = ["HeldOut", "held_out_loss", "validate"]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    nats: float
    """Summed over the labels of all processes."""
    labels: int
    bytes: int
    """That the labels stand for; 0 where that is unknown."""

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / max(self.labels, 1)


@torch.no_grad()
def held_out_loss(run: Run, batches: Iterable[Batch]) -> HeldOut:
    """Of whole batches, of which each process takes its share.

    The loss is summed in double precision over batches, then divided once by the number of labels.
    """
    nats, labels, size = 0.0, 0, 0
    run.model.eval()
    for batch in batches:
        inputs = to_tensors(run.parallel.share(batch), run.device)
        nats += run.losses(run.model, inputs)[0].item()
        labels += inputs.count
        size += batch.bytes
    run.model.train()
    nats, total = run.parallel.totals(nats, labels)
    return HeldOut(nats=nats, labels=int(total), bytes=size)


def validate(run: Run) -> dict[str, float]:
    """val/loss (nats a token), val/perplexity, and val/bpb where the labels' bytes are known."""
    c = run.config.train
    rows = c.micro_batch_size or c.batch_size
    found = held_out_loss(
        run, run.data.validation(run.sequence_length, c.validation_tokens, batch_size=rows)
    )
    row = {"val/loss": found.loss, "val/perplexity": math.exp(min(found.loss, 700.0))}
    if found.bytes:
        row["val/bpb"] = found.nats / math.log(2) / found.bytes
    return row
