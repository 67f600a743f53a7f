"""Each clipping rule against upstream's, and what is logged is the norm before clipping."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from ablate.config.schema import ClipConfig, TrialConfig
from ablate.errors import ConfigError
from ablate.train.clip import NoClip, build_clip, gradient_norms

SHAPES = [(4, 3), (7,), (2, 5)]
BETAS = (0.9, 0.95)


def gradients(step: int, scale: float = 1.0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return [torch.randn(s, generator=g) * scale * (1 + 3 * (step % 3)) for s in SHAPES]


def clip_of(**fields):
    return build_clip(ClipConfig(**fields), [f"p{i}" for i in range(len(SHAPES))], BETAS)


def clipped(clip, step: int, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    grads = [g.clone() for g in grads]
    clip(step, grads, gradient_norms(grads))
    return grads


def upstream_clip(steps: int, **group):
    """The gradients that upstream's optimiser leaves, step by step, and the norms that it logs."""
    optim = import_module("olmo.optim")
    parameters = [torch.nn.Parameter(torch.zeros(s)) for s in SHAPES]
    names = [f"p{i}" for i in range(len(SHAPES))]
    optimiser = optim.AdamW(
        [{"params": parameters, "param_names": names, "name": "all", **group}], lr=1.0, betas=BETAS
    )
    left, norms = [], []
    for step in range(1, steps + 1):
        for p, g in zip(parameters, gradients(step), strict=True):
            p.grad = g.clone()
        metrics = optimiser.clip_grads_and_collect_metrics(step)
        left.append([p.grad.clone() for p in parameters])
        norms.append(float(metrics["total_grad_norm"]))
    return left, norms


def test_norm_clipping_equals_upstream_and_the_norm_is_the_one_before():
    left, norms = upstream_clip(6, max_grad_norm=5.0)
    clip = clip_of(name="norm", max_norm=5.0)
    touched = 0
    for step in range(1, 7):
        raw = gradients(step)
        assert float(gradient_norms(raw).norm()) == pytest.approx(norms[step - 1], rel=1e-6)
        ours = clipped(clip, step, raw)
        torch.testing.assert_close(ours, left[step - 1], rtol=1e-6, atol=0)
        touched += not torch.equal(ours[0], raw[0])
    assert 0 < touched < 6


def test_ratio_clipping_equals_upstream_and_keeps_state_from_step_2_on():
    left, _ = upstream_clip(12, max_grad_norm_ratio=1.2)
    clip = clip_of(name="ratio", max_ratio=1.2)
    for step in range(1, 13):
        ours = clipped(clip, step, gradients(step))
        torch.testing.assert_close(ours, left[step - 1], rtol=1e-6, atol=0)
        assert bool(clip.state_dict()) == (step > 1)
    assert not torch.equal(left[-2][0], gradients(11)[0]), "nothing was ever clipped"


def test_ratio_clipping_continues_from_its_saved_state():
    whole, first, second = (clip_of(name="ratio", max_ratio=1.1) for _ in range(3))
    expected = [clipped(whole, step, gradients(step)) for step in range(1, 9)]
    for step in range(1, 5):
        clipped(first, step, gradients(step))
    second.load_state_dict(first.state_dict())
    for step in range(5, 9):
        for a, b in zip(clipped(second, step, gradients(step)), expected[step - 1], strict=True):
            assert torch.equal(a, b)


def test_value_clipping_bounds_every_element():
    raw = gradients(2)
    for g, r in zip(clipped(clip_of(name="value", max_value=0.5), 1, raw), raw, strict=True):
        assert torch.equal(g, r.clamp(-0.5, 0.5))


def test_none_leaves_gradients_alone():
    raw = gradients(2, scale=1e6)
    assert all(map(torch.equal, clipped(clip_of(name="none"), 1, raw), raw))


@pytest.mark.parametrize("name", ["norm", "value"])
def test_the_limit_is_higher_during_warmup(name):
    fields = {"max_norm": 1.0, "max_value": 0.1, "warmup_steps": 3, "warmup_factor": 4.0}
    during = clipped(clip_of(name=name, **fields), 3, gradients(1))
    after = clipped(clip_of(name=name, **fields), 4, gradients(1))

    def size(grads: list[torch.Tensor]) -> float:
        return float(
            gradient_norms(grads).norm() if name == "norm" else max(g.max() for g in grads)
        )

    assert size(during) == pytest.approx(4 * size(after), rel=1e-5)


def test_norms_of_bf16_gradients_are_taken_in_float32():
    grads = [torch.full((3000,), 0.01, dtype=torch.bfloat16)]
    exact = float(grads[0].double().norm())
    assert float(gradient_norms(grads)[0]) == pytest.approx(exact, rel=1e-5)


def test_norms_of_many_values_of_one_size_are_exact():
    """As Lion's updates are. Sums in float32 are off by 6e-4 here."""
    update = torch.full((10**6,), 1e-3)
    exact = float(update.double().norm())
    assert float(gradient_norms([update])[0]) == pytest.approx(exact, rel=1e-7)


class Halve(NoClip):
    def __call__(self, step, gradients, norms):
        torch._foreach_mul_(gradients, 0.5)


def test_a_users_own_rule_is_found_by_import_path():
    raw = gradients(1)
    clip = clip_of(name=f"{__name__}:Halve")
    for g, r in zip(clipped(clip, 1, raw), raw, strict=True):
        assert torch.equal(g, r / 2)


def test_an_unknown_rule_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"clip\.name=norms"):
        clip_of(name="norms")
    with pytest.raises(ConfigError, match=r"clip\.name"):
        clip_of(name="tests.nowhere:Clip")


# ---- limits that follow the gradients


def total(grads: list[torch.Tensor]) -> float:
    return float(gradient_norms(grads).norm())


def test_percentile_is_the_one_of_this_steps_tensor_maxima_and_always_clips():
    clip = clip_of(name="percentile", percentile=50.0)
    for step in range(1, 9):
        raw = gradients(step)
        middle = sorted(float(g.abs().max()) for g in raw)[1]  # of three tensors
        assert total(clipped(clip, step, raw)) == pytest.approx(middle, rel=1e-5)
        assert middle < total(raw)


def test_percentile_history_is_that_of_earlier_norms_and_an_outlier_is_cut():
    clip = clip_of(name="percentile_history", percentile=75.0, history=20, max_norm=1e9)
    norms: list[float] = []
    for step in range(1, 60):
        raw = gradients(step, scale=50.0 if step == 45 else 1.0)
        ours = clipped(clip, step, raw)
        if step <= 16:
            assert total(ours) == total(raw)
        else:
            known = sorted(norms[-20:])
            at = 0.75 * (len(known) - 1)
            low, high = known[int(at)], known[min(int(at) + 1, len(known) - 1)]
            limit = low + (high - low) * (at - int(at))
            assert total(ours) == pytest.approx(min(limit, total(raw)), rel=1e-4)
        norms.append(total(raw))
    assert norms[44] > 5 * sorted(norms)[30]


def test_agc_bounds_each_unit_by_its_weights():
    weights = [torch.nn.Parameter(torch.randn(s) * 0.1) for s in SHAPES]
    with torch.no_grad():
        weights[1].zero_()
    raw = gradients(2)
    for w, g in zip(weights, raw, strict=True):
        w.grad = g.clone()
    rule = build_clip(
        ClipConfig(name="agc", agc_ratio=0.5, agc_floor=0.01), ["a", "b", "c"], BETAS, weights
    )
    ours = clipped(rule, 1, raw)
    for w, g, o in zip(weights, raw, ours, strict=True):
        rows = zip(w.detach(), g, o, strict=True) if w.ndim == 2 else [(w.detach(), g, o)]
        for weight, before, after in rows:
            limit = 0.5 * max(float(weight.norm()), 0.01)
            assert float(after.norm()) == pytest.approx(min(limit, float(before.norm())), rel=1e-4)
            cosine = torch.nn.functional.cosine_similarity(before.flatten(), after.flatten(), dim=0)
            assert float(cosine) == pytest.approx(1.0, abs=1e-5)


def test_zclip_cuts_an_outlier_to_its_reciprocal_score_and_learns_what_it_kept():
    clip = clip_of(name="zclip", z_limit=2.5, z_decay=0.9, max_norm=1e9)
    one = [torch.ones(1)]
    norms = [1.0 + 0.1 * (i % 5) for i in range(25)]
    for step, norm in enumerate(norms, start=1):
        assert total(clipped(clip, step, [g * norm for g in one])) == pytest.approx(norm)
    mean = sum(norms) / 25
    std = (sum((n - mean) ** 2 for n in norms) / 25) ** 0.5
    high = mean + 10 * std
    cut = mean + 2.5**2 / 10 * std
    assert total(clipped(clip, 26, [g * high for g in one])) == pytest.approx(cut, rel=1e-3)
    mean = 0.9 * mean + 0.1 * cut
    std = (0.9 * std**2 + 0.1 * (cut - mean) ** 2) ** 0.5
    usual = mean + 2 * std
    assert total(clipped(clip, 27, [g * usual for g in one])) == pytest.approx(usual, rel=1e-5)
    assert total(clipped(clip, 28, [g * 1e-3 for g in one])) == pytest.approx(1e-3, rel=1e-5)


@pytest.mark.parametrize("name", ["percentile_history", "zclip"])
@pytest.mark.parametrize("at", [5, 30])
def test_adaptive_rules_continue_from_their_saved_state(name, at):
    whole, first, second = (clip_of(name=name, history=12, z_limit=0.1) for _ in range(3))
    expected = [clipped(whole, step, gradients(step)) for step in range(1, 50)]
    for step in range(1, at):
        clipped(first, step, gradients(step))
    second.load_state_dict(first.state_dict())
    for step in range(at, 50):
        for a, b in zip(clipped(second, step, gradients(step)), expected[step - 1], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    "fields",
    [
        {"percentile": 0.0}, {"percentile": 101.0}, {"history": 1}, {"agc_ratio": 0.0},
        {"agc_floor": -1.0}, {"z_limit": 0.0}, {"z_decay": 1.0},
    ],
)  # fmt: skip
def test_limits_out_of_range_are_refused_by_name(fields):
    (field,) = fields
    with pytest.raises(ConfigError, match=rf"clip\.{field}"):
        ClipConfig(**fields)


@pytest.mark.parametrize("name", ["percentile", "agc"])
def test_rules_that_need_whole_tensors_are_refused_where_these_are_divided(name):
    with pytest.raises(ConfigError, match=rf"clip\.name={name}.*parallel=fsdp"):
        TrialConfig.from_mapping({"clip": {"name": name}, "parallel": {"name": "fsdp"}})
