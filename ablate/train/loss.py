"""Cross-entropy in float32, summed: the caller divides once by the labels of the whole batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ablate.data import IGNORED
from ablate.model.linear import Unembedding, compute_dtype, multiply

__all__ = ["chunked_loss", "language_loss"]


def language_loss(
    logits: Float[Tensor, "... v"],
    labels: Int[Tensor, "..."],
    z_loss: float = 0.0,
    protected: bool = True,
) -> Float[Tensor, " 2"]:
    """Sums over real labels of -log p(label), in nats, and of `z_loss * logsumexp(logits)^2`.

    Upstream divides by all input positions, which makes its loss (t-1)/t of the true mean, and
    never reads its z-loss multiplier. Columns that pad the vocabulary take part in the softmax.

    Args:
        logits: in any float type.
        labels: the token that follows each position; `IGNORED` where there is none.
        z_loss: multiplier (arXiv 2204.02311, section 5).
        protected: False: each position's loss in the type of the logits (precision=fp16); the sum
            over positions is float32 all the same.
    """
    rows, targets = logits.flatten(0, -2), labels.flatten()
    if not protected:
        return _unprotected_loss(rows, targets, z_loss)
    rows = rows.float()
    nats = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
    if not z_loss:
        return torch.stack((nats, torch.zeros_like(nats)))
    square = torch.logsumexp(rows, dim=-1).square()
    return torch.stack((nats, z_loss * square.masked_fill(targets == IGNORED, 0.0).sum()))


def _unprotected_loss(
    rows: Float[Tensor, "n v"], targets: Int[Tensor, " n"], z_loss: float
) -> Float[Tensor, " 2"]:
    with torch.autocast(rows.device.type, enabled=False):
        each = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="none")
        nats, z = each.float().sum(), rows.new_zeros((), dtype=torch.float32)
        if z_loss:
            square = torch.logsumexp(rows, dim=-1).square()
            z = z_loss * square.masked_fill(targets == IGNORED, 0.0).float().sum()
    return torch.stack((nats, z))


def chunked_loss(
    hidden: Float[Tensor, "b t d"],
    unembedding: Unembedding,
    labels: Int[Tensor, "b t"],
    z_loss: float,
    chunk: int,
    protected: bool = True,
) -> Float[Tensor, " 2"]:
    """`language_loss` of the logits of `hidden`, of which never more than `chunk` rows exist.

    The gradients are taken chunk by chunk in the forward pass already, where the logits are, so
    that nothing is computed twice: they are those of the sum of the two values, which is what is
    trained. The sums run in another order, so the values differ in the last bits.

    Args:
        hidden: the output of the final norm.
        unembedding: the model's.
        labels: as for `language_loss`.
        z_loss: as for `language_loss`.
        chunk: positions at a time.
        protected: as for `language_loss`.
    """
    rows, targets = hidden.flatten(0, 1), labels.flatten()
    if not torch.is_grad_enabled():
        parts = zip(rows.split(chunk), targets.split(chunk), strict=True)
        each = [language_loss(unembedding.logits(x), y, z_loss, protected) for x, y in parts]
        return torch.stack(each).sum(0)
    weight, bias, scale = unembedding
    options = (scale, targets, z_loss, chunk, protected)
    total, z = _Chunked.apply(rows, weight, bias, *options)  # type: ignore
    return torch.stack((total - z, z))


class _Chunked(torch.autograd.Function):
    """(loss + z-loss, z-loss); only the first has a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Float[Tensor, "n d"],
        weight: Float[Tensor, "v d"],
        bias: Float[Tensor, " v"] | None,
        scale: float,
        targets: Int[Tensor, " n"],
        z_loss: float,
        chunk: int,
        protected: bool,
    ) -> tuple[Tensor, Tensor]:
        given = [weight] if bias is None else [weight, bias]
        leaves = [p.detach().requires_grad_(p.requires_grad) for p in given]
        head = Unembedding(leaves[0], None if bias is None else leaves[1], scale)
        trained = [p for p in leaves if p.requires_grad]
        # Summed in as many bits as the optimiser's, where the weights have fewer.
        sums = [torch.zeros_like(p, dtype=torch.float32) for p in trained]
        by_rows, losses = torch.empty_like(rows), torch.zeros(2, device=rows.device)
        by_hand = len(trained) == len(given) and compute_dtype(rows) == torch.float32
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            if by_hand and weight.dtype == torch.float32:
                losses += _in_place(head, rows[part], targets[part], z_loss, by_rows[part], sums)
                continue
            with torch.enable_grad():
                x = rows[part].detach().requires_grad_()
                found = language_loss(head.logits(x), targets[part], z_loss, protected)
                both = found.sum()
            by_rows[part], *others = torch.autograd.grad(both, [x, *trained])
            for total in sums:
                total += others.pop(0)  # gone before the next chunk's logits are there
            losses += found.detach()
        ctx.gradients = [by_rows, *(s.to(weight.dtype) for s in sums)]
        z = losses[1].clone()
        ctx.mark_non_differentiable(z)
        return losses.sum(), z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore
        by_rows, *rest = ctx.gradients
        ctx.gradients = None  # they are as large as the weights, so they are scaled where they lie
        torch._foreach_mul_([by_rows, *rest], gradients[0])
        found = [rest.pop(0) if needed else None for needed in ctx.needs_input_grad[1:3]]
        return (by_rows, *found, None, None, None, None, None)


def _in_place(
    head: Unembedding,
    x: Float[Tensor, "n d"],
    targets: Int[Tensor, " n"],
    z_loss: float,
    by_x: Float[Tensor, "n d"],
    sums: list[Tensor],
) -> Float[Tensor, " 2"]:
    """`language_loss` of a chunk; its gradients go to `by_x` and are added to `sums`.

    One table of n x v numbers is all that there ever is: the logits become their exponentials, and
    these the gradient by the logits, c p - [target], with c = 1 + 2 z_loss log Z. Autograd would
    hold four such tables, and the gradient by the weights twice.
    """
    weight, scale = head.weight.detach(), head.scale
    bias = None if head.bias is None else head.bias.detach()
    table = multiply(x, weight, bias)
    if scale != 1:
        table *= scale
    real = (targets != IGNORED).to(table.dtype)
    at = targets.clamp_min(0)[:, None]
    top = table.amax(-1, keepdim=True)
    chosen = table.gather(1, at) - top
    total = table.sub_(top).exp_().sum(-1, keepdim=True)
    log_z = (total.log() + top).squeeze(1)
    nats = real * (total.log() - chosen).squeeze(1)
    z = real * z_loss * log_z.square()
    table *= (real * (1 + 2 * z_loss * log_z))[:, None] / total
    table.scatter_add_(1, at, -real[:, None])
    if scale != 1:
        table *= scale
    torch.mm(table, weight, out=by_x)
    sums[0].addmm_(table.T, x)
    if bias is not None:
        sums[1] += table.sum(0)
    return torch.stack((nats.sum(), z.sum()))
