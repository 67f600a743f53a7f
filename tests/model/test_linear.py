"""The product without low-precision instructions is the product with them, roundings included."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ablate.model import linear
from ablate.model.linear import Linear, multiply

LOW = (torch.bfloat16, torch.float16)


@pytest.fixture
def no_instructions(monkeypatch):
    monkeypatch.setattr(linear, "has_low_precision_products", lambda _: False)


@pytest.fixture
def operands():
    draw = torch.Generator().manual_seed(0)
    shapes = ((3, 7, 24), (40, 24), (40,))
    return [torch.randn(s, generator=draw).requires_grad_() for s in shapes]


def rounded(low, operands):
    return [t.detach().to(low).double().requires_grad_() for t in operands]


@pytest.mark.parametrize("instructions", [False, True])
@pytest.mark.parametrize("low", LOW, ids=str)
def test_value_and_gradients_are_those_of_exact_products_of_the_rounded(
    low, instructions, operands, monkeypatch
):
    """Without instructions, and by torch's own product, which takes those that this CPU has."""
    monkeypatch.setattr(linear, "has_low_precision_products", lambda _: instructions)
    x, w, b = operands
    with torch.autocast("cpu", low):
        y = multiply(x, w, b)
    assert y.dtype == low
    exact = rounded(low, operands)
    reference = F.linear(*exact)
    step = torch.finfo(low).eps
    assert torch.allclose(y.double(), reference, rtol=step, atol=1e-5)

    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(low)
    y.backward(g)
    reference.backward(g.double())
    for ours, theirs in zip(operands, exact, strict=True):
        assert ours.grad.dtype == torch.float32
        assert torch.allclose(ours.grad.double(), theirs.grad, rtol=step, atol=1e-5)


@pytest.mark.parametrize("low", LOW, ids=str)
def test_it_agrees_with_torchs_own_product_to_a_last_bit(low, operands, no_instructions):
    x, w, b = operands
    with torch.autocast("cpu", low):
        ours, theirs = multiply(x, w, b), F.linear(x, w, b)
    assert ours.dtype == theirs.dtype
    assert torch.allclose(ours.float(), theirs.float(), rtol=2 * torch.finfo(low).eps, atol=1e-5)


def test_weights_in_bfloat16_need_no_autocast(operands, no_instructions):
    x, w, b = (t.detach().bfloat16() for t in operands)
    assert torch.allclose(multiply(x, w, b), F.linear(x, w, b), rtol=2**-7)


def test_what_overflows_float16_overflows_here_too(no_instructions):
    x = torch.full((1, 4), 300.0)
    with torch.autocast("cpu", torch.float16):
        assert multiply(x, x).isinf().all()


def test_float32_is_left_alone(operands, no_instructions):
    x, w, b = operands
    assert torch.equal(multiply(x, w, b), F.linear(x, w, b))


def test_with_instructions_torchs_own_product_runs(operands, monkeypatch):
    monkeypatch.setattr(linear, "has_low_precision_products", lambda _: True)
    x, w, b = operands
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(multiply(x, w, b), F.linear(x, w, b))


def test_a_linear_is_torchs_own_by_another_product(operands):
    x, w, b = operands
    layer = Linear(24, 40)
    layer.weight.data, layer.bias.data = w.data, b.data
    assert torch.equal(layer(x), F.linear(x, w, b))
