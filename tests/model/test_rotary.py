"""The rotation's own derivative is that of the formula."""

from __future__ import annotations

import torch

from ablate.model.rotary import Rotation, _Turn, rotate


def tables(length: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rates = 100.0 ** (-torch.arange(size // 2, dtype=dtype) * 2 / size)
    angles = torch.outer(torch.arange(length, dtype=dtype), rates)
    return torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)


def test_the_written_derivative_passes_gradcheck() -> None:
    cos, sin = tables(5, 6, torch.float64)
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: _Turn.apply(v, cos, sin), (x,))


def test_it_equals_the_formula_which_float64_takes() -> None:
    cos, sin = tables(7, 8, torch.float64)
    x, g = torch.randn(2, 2, 3, 7, 8, dtype=torch.float64)
    one, other = (x.clone().requires_grad_() for _ in range(2))
    turned, plain = _Turn.apply(one, cos, sin), rotate(other, Rotation(cos, sin, False))
    torch.testing.assert_close(turned, plain, rtol=0, atol=1e-14)
    turned.backward(g)
    plain.backward(g)
    torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-14)
