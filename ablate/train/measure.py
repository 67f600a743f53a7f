"""What is measured besides the loss: the size of each update, and at times the model's inside."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.train.batch import TensorBatch
from ablate.train.clip import gradient_norms
from ablate.train.run import Run

__all__ = ["UpdateNorm", "layer_of", "measure"]

LAYER = re.compile(r"\bblocks\.(\d+)\.|\bblock_groups\.(\d+)\.(\d+)\.")


class UpdateNorm:
    """2-norm of what the optimiser adds to all parameters in one step.

    Fused optimisers change parameters in place, so it takes a copy of them and a difference.
    """

    def __init__(self, parameters: list[Tensor], whole: Callable[[Tensor], Tensor]) -> None:
        """`whole`: norms of tensors, from those of the parts of them that lie here."""
        self.parameters, self.whole = [p.detach() for p in parameters], whole
        self.buffers = [torch.empty_like(p) for p in self.parameters]

    @torch.no_grad()
    def before(self) -> None:
        torch._foreach_copy_(self.buffers, self.parameters)

    @torch.no_grad()
    def after(self) -> Float[Tensor, ""]:
        torch._foreach_sub_(self.buffers, self.parameters)
        return torch.linalg.vector_norm(self.whole(gradient_norms(self.buffers)))

    @torch.no_grad()
    def keep(self, share: float) -> float:
        """After `after`: takes back all but `share` of the update; returns the share."""
        if share != 1.0:
            torch._foreach_add_(self.parameters, self.buffers, alpha=1.0 - share)
        return share


def layer_of(name: str, block_group_size: int) -> int | None:
    """Of a parameter; None outside of the layers."""
    match = LAYER.search(name)
    if match is None:
        return None
    return int(match[1]) if match[1] else int(match[2]) * block_group_size + int(match[3])


@torch.no_grad()
def measure(run: Run, batch: TensorBatch) -> dict[str, float]:
    """Attention logits and activations of each layer, weight norms, statistics of the output.

    One forward pass of its own over the first micro-batch, without dropout: it changes nothing.
    """
    part = next(batch.split(run.parallel.micro_batch(run.config.train)))
    run.model.eval()
    model: Any = run.model  # its `recording` is not nn.Module's
    with model.recording() as record, run.precision.autocast():
        hidden = run.model(**part.model_inputs, unembed=False).logits.flatten(0, 1)
        rows = run.config.loss.chunk or len(hidden)
        statistics = _logit_statistics(model.unembedding.logits(x) for x in hidden.split(rows))
    run.model.train()
    norms = _weight_norms(
        dict(zip(run.names, run.parallel.local(run.parameters), strict=True)),
        run.model_config.block_group_size,
    )
    values = {**record, **statistics, **norms}
    numbers = torch.stack([v.float() for v in values.values()]).tolist()
    return run.parallel.pooled(dict(zip(values, numbers, strict=True)))


def _logit_statistics(chunks: Iterable[Float[Tensor, "n v"]]) -> dict[str, Tensor]:
    """Over all positions, of which only a chunk's logits exist at one time."""
    sizes, means, squares, extremes, by_row = [], [], [], [], []
    for chunk in chunks:
        logits = chunk.float()
        log_z = torch.logsumexp(logits, dim=-1)
        entropy = log_z - (torch.softmax(logits, dim=-1) * logits).sum(-1)
        by_row.append(torch.stack((log_z, log_z.square(), entropy)))
        extremes.append(torch.stack(logits.aminmax()))
        sizes.append(logits.numel())
        means.append(logits.mean())
        squares.append(logits.var(correction=0))
    weights = torch.tensor(sizes, device=means[0].device) / sum(sizes)
    mean = (weights * torch.stack(means)).sum()
    variance = (weights * (torch.stack(squares) + (torch.stack(means) - mean).square())).sum()
    log_z, square, entropy = torch.cat(by_row, dim=1).mean(1)
    bounds = torch.stack(extremes)
    return {
        "model/logit_max": bounds[:, 1].max(),
        "model/logit_min": bounds[:, 0].min(),
        "model/logit_mean": mean,
        "model/logit_std": variance.sqrt(),
        "model/log_z": log_z,
        "model/log_z_rms": square.sqrt(),
        "model/output_entropy": entropy,
    }


def _weight_norms(parameters: dict[str, Tensor], block_group_size: int) -> dict[str, Tensor]:
    """Of the whole model, of each layer, and of each module outside the layers."""
    squares: dict[str, list[Tensor]] = defaultdict(list)
    norms = gradient_norms(list(parameters.values()))
    for name, square in zip(parameters, norms.square(), strict=True):
        squares["model/weight_norm"].append(square)
        layer = layer_of(name, block_group_size)
        part = name.rpartition(".")[0].rpartition(".")[2] or name if layer is None else str(layer)
        squares[f"model/weight_norm/{part}"].append(square)
    return {key: torch.stack(values).sum().sqrt() for key, values in squares.items()}
