"""float16 with norms, softmax and loss protected, and without: where one overflows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ablate.config.compose import Composer
from ablate.config.schema import PrecisionConfig, TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.model.attention import Scope, attend
from ablate.model.noisy import NoisyNorm
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.loss import chunked_loss, language_loss
from ablate.train.precision import Precision

CPU = torch.device("cpu")
FAMILIES = ["gpt2", "olmo2"]
IDS = torch.randint(0, 257, (2, 32), generator=torch.Generator().manual_seed(0))


def prepared(
    precision: str, family: str, layers: int | None = None, *overrides: str, fused: bool = True
) -> tuple[OLMo, Precision]:
    tree = Composer().compose([f"model={family}", "size=tiny", "dropout=none", *overrides])
    fields = {"name": precision, "foundation_layers": layers, "fused_norms": fused}
    numbers = Precision(PrecisionConfig(**fields), CPU)  # type: ignore[arg-type]
    model: Any = numbers.prepare(OLMo(ModelConfig.from_mapping(tree["model"])))
    return model.eval(), numbers


def logits(model: OLMo, numbers: Precision) -> torch.Tensor:
    with torch.no_grad(), numbers.autocast():
        return model(IDS).logits.float()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_on_usual_inputs_both_are_close_to_float32(family: str) -> None:
    exact = logits(*prepared("fp32", family))
    for name, fused in (("fp16", True), ("fp16", False), ("fp16_protected", True)):
        found = logits(*prepared(name, family, fused=fused))
        assert 0 < distance(found, exact) < 0.02, name


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_spelled_out_have_no_gradient_at_the_usual_initialisation(family: str) -> None:
    """1/rms³ of an embedding of deviation 0.02 lies beyond float16, whatever the loss scale is."""
    finite = {}
    for case, name, layers, fused in (
        ("spelled out", "fp16", None, False),
        ("kernels", "fp16", None, True),
        ("protected", "fp16_protected", None, True),
    ):
        model, numbers = prepared(name, family, layers, "norm=rms", "placement=pre", fused=fused)
        with numbers.autocast():
            found = model.train()(IDS).logits
        language_loss(found, IDS, 0.0, numbers.protects_loss)[0].backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        finite[case] = all(bool(g.isfinite().all()) for g in gradients)
    assert finite == {"spelled out": False, "kernels": True, "protected": True}


def test_a_foundation_is_protected_from_norms_spelled_out_too() -> None:
    model, numbers = prepared("fp16_protected", "gpt2", 1, fused=False)
    whole = logits(model, numbers)
    assert distance(whole, logits(*prepared("fp32", "gpt2"))) < 0.02
    assert not torch.equal(whole, logits(*prepared("fp16_protected", "gpt2", 1)))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_residual_beyond_float16_overflows_unprotected_and_not_protected(norm: str) -> None:
    found = {}
    for name in ("fp32", "fp16", "fp16_protected"):
        model, numbers = prepared(name, "gpt2", None, f"norm={norm}", "tying=untied")
        with torch.no_grad():
            model.transformer["wte"].weight.mul_(1e8)
        found[name] = logits(model, numbers)
    assert distance(found["fp16_protected"], found["fp32"]) < 0.01
    assert not found["fp16"].isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "math"])
def test_attention_beyond_float16_overflows_unprotected_and_not_protected(backend: str) -> None:
    q, k, v = (
        torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    q, k, v = (q * 300).half(), (k * 300).half(), v.half()
    scope = Scope(backend="sdpa" if backend == "auto" else "math")
    exact = attend(q.float(), k.float(), v.float(), scope)
    protected = attend(q, k, v, scope, softmax=torch.float32)
    assert protected.dtype == torch.float16
    assert distance(protected.float(), exact) < 1e-3
    assert not attend(q, k, v, scope, softmax=torch.float16).isfinite().all()


def test_the_loss_overflows_unprotected_and_not_protected() -> None:
    rows = torch.zeros(4, 8, dtype=torch.float16)
    rows[:, 0], rows[:, 1] = 6e4, -6e4
    labels = torch.tensor([0, 1, 1, -100])
    exact = language_loss(rows.float(), labels)
    assert torch.equal(language_loss(rows, labels), exact)
    assert math.isfinite(float(exact[0]))
    assert not math.isfinite(float(language_loss(rows, labels, 0.0, False)[0]))


@pytest.mark.parametrize("z", [0.0, 1e-3])
def test_the_unprotected_loss_is_that_of_float32_up_to_rounding_in_chunks_too(z: float) -> None:
    model, _ = prepared("fp32", "gpt2")
    hidden = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(1)).half()
    labels = torch.randint(0, 257, (2, 8), generator=torch.Generator().manual_seed(2))
    head = model.unembedding._replace(weight=model.unembedding.weight.half())
    rows = head.logits(hidden)
    exact, low = language_loss(rows, labels, z), language_loss(rows, labels, z, False)
    torch.testing.assert_close(low, exact, rtol=2e-3, atol=1e-3)
    assert not torch.equal(low, exact)
    chunked = chunked_loss(hidden, head, labels, z, 3, False)
    torch.testing.assert_close(chunked.detach(), low.detach(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layers", [0, 1])
def test_a_foundation_is_protected_and_what_lies_above_is_not(layers: int) -> None:
    model, numbers = prepared("fp16_protected", "gpt2", layers)
    assert [b.softmax for b in model.blocks] == [
        torch.float32 if i < layers else torch.float16 for i in range(2)
    ]
    seen: dict[str, torch.dtype] = {}
    for name, module in model.named_modules():
        if name.endswith(("_norm", "ln_f")):
            module.register_forward_hook(lambda m, i, y, name=name: seen.update({name: y.dtype}))
    logits(model, numbers)
    for name, dtype in seen.items():
        inside = name.startswith("transformer.blocks.") and int(name.split(".")[2]) < layers
        assert dtype == (torch.float32 if inside else torch.float16), name
    assert len(seen) == 5
    assert not numbers.protects_loss


@pytest.mark.parametrize("name", ["fp16", "fp16_protected"])
@pytest.mark.parametrize("norm", ["norm=noisy", "norm=segmented"])
def test_norms_with_noise_or_segments_are_protected_or_not_like_others(name, norm) -> None:
    model, numbers = prepared(name, "gpt2", None, norm)
    seen = []
    for module in model.modules():
        if isinstance(module, NoisyNorm):
            module.register_forward_hook(lambda m, i, y: seen.append(y.dtype))
    for mode in (True, False):
        logits(model.train(mode), numbers)
    assert seen == [torch.float32 if name == "fp16_protected" else torch.float16] * 10


def test_names_and_weights_are_those_of_float32() -> None:
    plain = prepared("fp32", "olmo2")[0].state_dict()
    for name in ("fp16", "fp16_protected"):
        state = prepared(name, "olmo2")[0].state_dict()
        assert state.keys() == plain.keys()
        assert all(torch.equal(state[k], plain[k]) for k in plain)


def test_each_trains_and_none_like_another(config, tmp_path) -> None:
    losses = []
    for i, precision in enumerate(
        [
            {"name": "fp32"}, {"name": "fp16"}, {"name": "fp16_protected"},
            {"name": "fp16_protected", "foundation_layers": 1},
        ]
    ):  # fmt: skip
        trial, settings = TrialDir(tmp_path / str(i)), config(precision=precision)
        trial.create(settings, 12)
        assert run_trial(trial.acquire(), settings).status == "done"
        losses.append([r["train/loss"] for r in trial.stitched()])
        assert losses[-1] == pytest.approx(losses[0], rel=0.1)
    assert all(a != b for i, a in enumerate(losses) for b in losses[:i])


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"precision": {"name": "bf16", "foundation_layers": 1}}, "precision.foundation_layers"),
        ({"precision": {"name": "fp32", "fused_norms": False}}, "precision.fused_norms"),
        ({"precision": {"name": "fp16_protected", "fused_norms": False}}, "precision.fused_norms"),
        (
            {"precision": {"name": "fp16_protected", "foundation_layers": 9}},
            "exceeds model.n_layer",
        ),
        (
            {
                "precision": {"name": "fp16_protected"},
                "model": {"layer_norm_type": "low_precision"},
            },
            "model.layer_norm_type=low_precision",
        ),
        (
            {"precision": {"name": "fp16"}, "model": {"attention_backend": "sdpa"}},
            "model.attention_backend=sdpa",
        ),
        (
            {"precision": {"name": "fp16"}, "model": {"flash_attention": True}},
            "model.flash_attention",
        ),
        (
            {"precision": {"name": "fp16_protected"}, "parallel": {"name": "fsdp"}},
            "precision.name=fp16_protected",
        ),
    ],
)
def test_nonsense_is_refused_by_name(sections, named) -> None:
    with pytest.raises(ConfigError, match=named):
        TrialConfig.from_mapping({"model": {"n_layers": 2}, **sections})
