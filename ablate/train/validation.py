"""Held-out loss: every validation token but the first is predicted exactly once."""

from __future__ import annotations

import math

import torch

from ablate.train.batch import to_tensors
from ablate.train.run import Run

__all__ = ["validate"]


@torch.no_grad()
def validate(run: Run) -> dict[str, float]:
    """val/loss (nats a token), val/perplexity, and val/bpb where the bytes of the labels are known.

    The loss is summed in double precision over batches, then divided once by the number of labels.
    """
    nats, labels, size = 0.0, 0, 0
    run.model.eval()
    c = run.config.train
    rows = c.micro_batch_size or c.batch_size
    for batch in run.data.validation(run.sequence_length, c.validation_tokens, batch_size=rows):
        inputs = to_tensors(run.parallel.share(batch), run.device)
        nats += run.losses(run.model, inputs)[0].item()
        labels += inputs.count
        size += batch.bytes
    run.model.train()
    nats, labels = run.parallel.totals(nats, labels)
    loss = nats / max(labels, 1)
    row = {"val/loss": loss, "val/perplexity": math.exp(min(loss, 700.0))}
    if size:
        row["val/bpb"] = nats / math.log(2) / size
    return row
