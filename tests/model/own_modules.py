"""Modules as users write them: those that read later tokens, and those that do not."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from ablate.model.norm import RMSNorm
from ablate.model.position import Position


class Rolled(RMSNorm):
    """Reads the next position; the last one reads the first."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.5 * torch.roll(y, -1, 1)


class Faint(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.005 * torch.roll(y, -1, 1)


class Closed(RMSNorm):
    """A gate that is shut as long as nothing is trained."""

    def __init__(self, size: int, *, eps: float, affine: bool, bias: bool) -> None:
        super().__init__(size, eps=eps, affine=affine, bias=bias)
        self.gate = nn.Parameter(torch.zeros(1))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.gate)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + self.gate * y.mean(1, keepdim=True)


class Blocked(RMSNorm):
    """The mean of a block of 32 positions, later ones included."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        blocks = y.unflatten(1, (-1, 32))
        return (blocks + 0.3 * blocks.mean(2, keepdim=True)).flatten(1, 2)


class AtOneWidth(RMSNorm):
    """Its matrix has the width of one model."""

    def __init__(self, size: int, *, eps: float, affine: bool, bias: bool) -> None:
        super().__init__(size, eps=eps, affine=affine, bias=bias)
        self.mix = nn.Parameter(torch.eye(64))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.eye_(self.mix)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.mix


class RolledAtOneWidth(AtOneWidth):
    def forward(self, x: Tensor) -> Tensor:
        return torch.roll(super().forward(x), -1, 1)


class Centred(nn.Module):
    """An activation that subtracts the mean over all positions; no gradient passes there."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) - x.detach().mean(-2, keepdim=True)


class Mirrored(Position):
    """Adds the embedding of the mirrored position."""

    def embed(self, start: int, length: int, like: Tensor) -> Tensor:
        return 0.1 * like.flip(-2).mean(0)


# ---- causal


class Shifted(RMSNorm):
    """Reads the position before."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + 0.5 * torch.nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]


class OverRows(RMSNorm):
    """A statistic of the batch, at each position by itself."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y - y.mean(0, keepdim=True)


class RunningMean(RMSNorm):
    """Batch normalisation: over rows and positions in training, by what was recorded afterwards."""

    def __init__(self, size: int, *, eps: float, affine: bool, bias: bool) -> None:
        super().__init__(size, eps=eps, affine=affine, bias=bias)
        self.batch = nn.BatchNorm1d(size, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.batch(super().forward(x).flatten(0, 1)).view_as(x)


class Subtracted(RMSNorm):
    """A sum up to here, as the sum of all less that of the later ones: it rounds with them."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        later = y.flip(1).cumsum(1).flip(1) - y
        place = torch.arange(1, y.shape[1] + 1, dtype=y.dtype)[:, None]
        return y + (y.sum(1, keepdim=True) - later) / place


class Convolved(nn.Module):
    """A causal convolution by Fourier transforms, whose rounding knows all positions."""

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[-2]
        kernel = torch.exp(-torch.arange(t, dtype=x.dtype) / 3)[:, None]
        product = torch.fft.rfft(x, 2 * t, dim=-2) * torch.fft.rfft(kernel, 2 * t, dim=-2)
        return torch.relu(torch.fft.irfft(product, 2 * t, dim=-2)[..., :t, :])


class Rounded(Convolved):
    """Rounded to bfloat16, which a last bit of float32 may decide."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).bfloat16().to(x.dtype)


class Drawing(nn.Module):
    """Draws from every generator there is, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = random.random() + float(np.random.rand())  # noqa: NPY002

    def forward(self, x: Tensor) -> Tensor:
        random.random()
        np.random.rand()  # noqa: NPY002
        return self.slope * torch.relu(x) + 0.1 * torch.rand_like(x)


# ---- neither can be said


class Counting(nn.Module):
    """Another function at each call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return torch.relu(x) * Counting.calls


class Infinite(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 0


# ---- no module


def small(config: object, part: object) -> float:
    """An init function."""
    return 0.01
