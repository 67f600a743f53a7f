"""Norms with noise, segments and a gradient clamp: what each adds, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.model.noisy import ClampGradient, Moment, NoisyNorm
from ablate.model.norm import build_norm
from tests.model.models import BASE, OLMO2, difference, tiny, tokens

BASES = ["default", "rms", "low_precision"]


def norm(**fields: Any) -> NoisyNorm:
    built = build_norm(ModelConfig(**{**BASE, "norm_noise": 0.1, **fields}))
    assert isinstance(built, NoisyNorm)
    built.reset_parameters()
    generator = torch.Generator().manual_seed(0)
    for parameter in built.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.2
    return built


def x(rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 16, 32, generator=torch.Generator().manual_seed(5)) * 3 + 1


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("affine", [{}, {"include_bias": False}, {"layer_norm_with_affine": False}])
def test_in_evaluation_it_is_the_base_norm_bit_for_bit(base, at, affine) -> None:
    fields = {"layer_norm_type": base, "norm_noise_at": at, **affine}
    ours = norm(**fields).eval()
    plain = build_norm(ModelConfig(**{**BASE, "layer_norm_type": base, **affine}))
    assert not isinstance(plain, NoisyNorm)
    plain.load_state_dict(ours.state_dict())
    assert torch.equal(ours(x()), plain(x()))


@pytest.mark.parametrize("family", [{}, OLMO2, {**OLMO2, "norm_after": False, "peri_norm": True}])
def test_a_model_in_evaluation_is_the_one_without_noise_and_shares_its_weights(family) -> None:
    plain = OLMo(ModelConfig(**{**BASE, **family}), seed=3).eval()
    noisy = OLMo(ModelConfig(**{**BASE, **family, "norm_noise": 0.1}), seed=3).eval()
    ours, theirs = noisy.state_dict(), plain.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(noisy(tokens()).logits, plain(tokens()).logits)
    assert not torch.equal(noisy.train()(tokens()).logits, plain(tokens()).logits)


@pytest.mark.parametrize("base", ["default", "rms"])
def test_noise_after_has_its_deviation_in_units_of_the_normalised_value(base) -> None:
    ours = norm(layer_norm_type=base, norm_noise=0.25).train()
    added = (ours(x(64)) - ours.eval()(x(64))) / ours.weight
    assert float(added.detach().std()) == pytest.approx(0.25, rel=0.02)
    assert abs(float(added.detach().mean())) < 0.01


def test_noise_before_is_in_units_of_the_input() -> None:
    ours = norm(norm_noise=0.5, norm_noise_at="before").train()
    ours.place("transformer.ln_f", Moment(step=1))
    draw = ours.moment.generator(ours.name, torch.device("cpu"))
    shifted = x() + 0.5 * torch.randn(x().shape, generator=draw)
    assert torch.equal(ours(x()), ours.eval()(shifted))


def test_noise_is_a_function_of_seed_step_layer_and_micro_batch_alone() -> None:
    def draw(name: str = "a", **moment: int) -> torch.Tensor:
        ours = norm().train()
        ours.place(name, Moment(**{"seed": 1, "step": 5, "micro_batch": 0, **moment}))
        torch.manual_seed(hash((name, *moment)) % 1000)
        return ours._draw(x())

    first = draw()
    assert torch.equal(first, draw())
    others = [draw("b"), draw(seed=2), draw(step=6), draw(micro_batch=1), draw(rank=1)]
    assert all(not torch.equal(first, other) for other in others)


def test_annealed_noise_ends_at_zero_and_constant_noise_does_not() -> None:
    for schedule, expected in (("linear", [0.09, 0.05, 0.0]), ("constant", [0.1, 0.1, 0.1])):
        ours = norm(norm_noise_schedule=schedule).train()
        ours.place("a", Moment(steps=10))
        found = []
        for ours.moment.step in (1, 5, 10):
            found.append(ours.deviation())
        assert found == pytest.approx(expected)


def test_the_noise_of_a_foundation_reaches_no_higher() -> None:
    model = OLMo(
        ModelConfig(
            **{**BASE, "n_layers": 4, "embedding_layer_norm": True}, norm_noise=0.1,
            foundation_layers=2, block_group_size=2,
        )
    ).train()  # fmt: skip
    noisy = {m.name for m in model.modules() if isinstance(m, NoisyNorm) and m.deviation()}
    blocks = {f"transformer.blocks.{i}.{n}" for i in (0, 1) for n in ("attn_norm", "ff_norm")}
    assert noisy == {"transformer.emb_norm", *blocks}


def test_recomputed_activations_see_the_same_noise() -> None:
    gradients = []
    for strategy in (None, "whole_layer", "fine_grained"):
        model = tiny(norm_noise=0.3).train()
        assert model.moment is not None
        model.moment.step = 1
        model.set_activation_checkpointing(strategy)
        model(tokens()).logits.square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for other in gradients[1:]:
        assert all(map(torch.equal, gradients[0], other))


# ---- scale and shift


@pytest.mark.parametrize("base", ["default", "rms"])
@pytest.mark.parametrize("segments", [1, 4, 16])
def test_segments_are_a_full_scale_and_shift_that_repeat(base, segments) -> None:
    ours = norm(layer_norm_type=base, norm_segments=segments).eval()
    assert ours.weight is not None
    assert ours.weight.shape == (segments,)
    full = build_norm(ModelConfig(**{**BASE, "layer_norm_type": base}))
    state = {n: p.repeat_interleave(32 // segments) for n, p in ours.state_dict().items()}
    full.load_state_dict(state)
    assert difference(ours(x()), full(x())) < 1e-6


def test_a_shift_alone_has_no_scale() -> None:
    ours = norm(layer_norm_scale=False)
    assert [n for n, _ in ours.named_parameters()] == ["bias"]
    plain = build_norm(ModelConfig(**{**BASE, "layer_norm_with_affine": False}))
    assert difference(ours.eval()(x()), plain(x()) + ours.bias) < 1e-6


# ---- the gradient clamp


@pytest.mark.parametrize("by", ["value", "norm"])
def test_the_clamp_is_the_identity_forward_and_bounds_what_comes_back(by: str) -> None:
    values = x().requires_grad_()
    y = ClampGradient.apply(values, 0.5, by)
    assert torch.equal(y, values)
    weights = torch.randn(y.shape)
    (y * weights).sum().backward()
    assert values.grad is not None
    if by == "value":
        assert torch.equal(values.grad, weights.clamp(-0.5, 0.5))
    else:
        share = (0.5 / weights.norm(dim=-1, keepdim=True)).clamp(max=1)
        torch.testing.assert_close(values.grad, weights * share)


def test_the_clamps_limit_follows_the_unit_of_the_loss() -> None:
    gradients = []
    for unit in (1.0, 1024.0):
        ours = norm(norm_noise=0.0, norm_grad_clip=0.01)
        ours.place("a", Moment(gradient_unit=unit))
        values = x().requires_grad_()
        (ours(values).square().sum() * unit).backward()
        assert values.grad is not None
        gradients.append(values.grad / unit)
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"norm_noise": -0.1}, "norm_noise"),
        ({"norm_noise_at": "during"}, "norm_noise_at"),
        ({"norm_noise_schedule": "cosine"}, "norm_noise_schedule"),
        ({"norm_segments": 5}, "norm_segments.*does not divide"),
        ({"norm_segments": 32}, "norm_segments.*null"),
        ({"norm_segments": 4, "layer_norm_with_affine": False}, "norm_segments"),
        ({"norm_grad_clip": 0.0}, "norm_grad_clip"),
        ({"norm_grad_clip_by": "size"}, "norm_grad_clip_by"),
        ({"layer_norm_scale": False, "bias_for_layer_norm": False}, "layer_norm_scale"),
        ({"foundation_layers": 1}, "foundation_layers.*norm_noise=0"),
        ({"foundation_layers": 3, "norm_noise": 0.1}, "foundation_layers.*n_layers=2"),
        ({"foundation_layers": 0, "norm_noise": 0.1}, "foundation_layers.*no norm"),
    ],
)
def test_nonsense_is_refused_by_name(fields, named) -> None:
    with pytest.raises(ConfigError, match=f"model.{named}"):
        ModelConfig(**{**BASE, **fields})
