"""Measuring activations in passing: `with model.recording() as record: model(x)`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.model.attention import Scope
from ablate.model.bias import LOWEST

__all__ = ["Recorder", "largest_logit"]


class Recorder(dict[str, Tensor]):
    """Scalars by name. Over several passes a maximum stays one, and an RMS is taken over all."""

    def __init__(self) -> None:
        super().__init__()
        self._passes: dict[str, int] = {}

    @torch.no_grad()
    def largest(self, name: str, value: Float[Tensor, ""]) -> None:
        self[name] = torch.maximum(self[name], value) if name in self else value

    @torch.no_grad()
    def rms(self, name: str, x: Float[Tensor, "..."]) -> None:
        square, n = x.detach().float().square().mean(), self._passes.get(name, 0)
        if n:
            square = (self[name].square() * n + square) / (n + 1)
        self[name], self._passes[name] = square.sqrt(), n + 1


@torch.no_grad()
def largest_logit(
    q: Float[Tensor, "b h q c"], k: Float[Tensor, "b g k c"], scope: Scope
) -> Float[Tensor, ""]:
    """The largest q·k/√c of all pairs that `scope` lets see each other, without position bias."""
    q, k = q.detach().float(), k.detach().float()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    visible = _visible(scope, q.shape[0], q.shape[2], k.shape[2], q.device)
    largest = []
    for row in range(q.shape[0]):  # row by row: the logits of a whole batch may not fit
        logits = q[row] @ k[row].transpose(-1, -2) * q.shape[-1] ** -0.5
        seen = visible[row if visible.shape[0] > 1 else 0]
        largest.append(logits.masked_fill(~seen, -torch.inf).amax())
    return torch.stack(largest).amax()


def _visible(scope: Scope, batch: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """[#b, #h, q, k], true where the query sees the key."""
    if scope.bias is not None:
        visible = scope.bias > max(LOWEST, torch.finfo(scope.bias.dtype).min) / 2
    else:
        place = torch.arange(keys, device=device)
        distance = place[-queries:, None] - place[None, :]
        visible = (distance >= 0) if scope.causal else torch.ones_like(distance, dtype=torch.bool)
        if scope.window is not None:
            visible &= distance < scope.window
        visible = visible[None, None]
    if scope.documents is not None:
        rows = []
        for lengths in scope.documents:
            name = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(
                device
            )
            rows.append(name[:, None] == name[None, :])
        visible = visible & torch.stack(rows)[:, None]
    names = scope.names if scope.packing is None else scope.packing.names(batch, keys)
    if names is not None:
        visible = visible & (names[:, :, None] == names[:, None, :])[:, None]
    return visible
