"""Every kernel computes what `math` does in float64; which one is chosen, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.model.attention import Scope, attend
from ablate.model.kernel_case import Case, training_case
from ablate.model.kernels import choose, choose_all, refuse, summary
from tests.model.models import BASE, difference, tiny, tokens

DOCUMENTS = torch.tensor([[5, 7, 4, 0], [16, 0, 0, 0]])
WHO_SEES_WHOM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({}, {}),
    "window": ({"sliding_window": 4}, {}),
    "windows and full": ({"sliding_window_pattern": [4, -1]}, {}),
    "documents": ({}, {"doc_lens": DOCUMENTS}),
    "documents in a window": ({"sliding_window": 4}, {"doc_lens": DOCUMENTS}),
    "QK-norm": ({"attention_layer_norm": True}, {}),
    "ALiBi": ({"alibi": True}, {}),
    "ALiBi, window, documents": ({"alibi": True, "sliding_window": 6}, {"doc_lens": DOCUMENTS}),
}


# ---- stand-ins that compute what the packages document, for a CPU and in any type


def seen(queries: int, keys: int, window: tuple[int, int]) -> Tensor:
    """By the documentation of both: query i stands at i + keys - queries; -1 is no limit."""
    place = torch.arange(queries)[:, None] + keys - queries
    distance = place - torch.arange(keys)
    left = torch.ones_like(distance, dtype=torch.bool) if window[0] < 0 else distance <= window[0]
    right = torch.ones_like(left) if window[1] < 0 else -distance <= window[1]
    return left & right


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """[tokens, heads, size]"""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    logits = torch.einsum("qhc,khc->hqk", q, k) / q.shape[-1] ** 0.5
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khc->qhc", weights, v)


def by_edges(q: Tensor, k: Tensor, v: Tensor, edges: Tensor, window: tuple[int, int]) -> Tensor:
    assert edges.dtype == torch.int32
    assert edges[0] == 0
    assert edges[-1] == len(q)
    sizes = edges.diff().tolist()
    parts = zip(*(x.split(sizes) for x in (q, k, v)), strict=True)
    return torch.cat([attention(*p, seen(len(p[0]), len(p[0]), window)) for p in parts])


def varlen_attn(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, n: int, m: int, **options: Any
) -> Tensor:
    window = options.pop("window_size", (-1, -1))
    assert options in ({}, {"enable_gqa": True})
    assert (q.shape[1] != k.shape[1]) == bool(options)
    assert n >= int(a.diff().max())
    return by_edges(q, k, v, a, window)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **o: Any) -> Tensor:
    assert o["dropout_p"] == 0
    assert o["causal"]
    window = (o["window_size"][0], 0)
    masks = seen(q.shape[1], k.shape[1], window)
    return torch.stack([attention(*row, masks) for row in zip(q, k, v, strict=True)])


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, n: int, m: int, **o: Any
) -> Tensor:
    assert o["dropout_p"] == 0
    assert o["causal"]
    return by_edges(q, k, v, a, (o["window_size"][0], 0))


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(
        flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func
    )
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr("ablate.model.kernels.ONLY_CUDA", ())


NO_BIAS = [case for case in WHO_SEES_WHOM if "ALiBi" not in case]
TOGETHER = ["causal", "windows and full", "documents in a window", "ALiBi, window, documents"]
"""Of flex, which torch is slow to set up on a CPU."""
TESTED = [
    *((kernel, case) for kernel in ("flash", "varlen") for case in NO_BIAS),
    *(("sdpa", case) for case in WHO_SEES_WHOM),
    *(("flex", case) for case in TOGETHER),
]


@pytest.mark.parametrize(("kernel", "case"), TESTED)
def test_every_kernel_computes_what_math_does_in_float64(
    stand_ins: None, kernel: str, case: str
) -> None:
    fields, inputs = WHO_SEES_WHOM[case]
    place = {} if "alibi" in fields else {"rope": True}
    models = [
        tiny(**fields, **place, n_kv_heads=2, attention_backend=name).double()
        for name in ("math", kernel)
    ]
    records = []
    for model in models:
        with torch.no_grad(), model.recording() as record:
            records.append((model(tokens(), **inputs).logits, record))
    (want, told), (got, recorded) = records
    assert difference(got, want) < 1e-12
    for name, value in told.items():
        torch.testing.assert_close(recorded[name], value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kernel", ["sdpa", "flash", "varlen"])
def test_their_gradients_are_those_of_math(stand_ins: None, kernel: str) -> None:
    found = []
    for name in ("math", kernel):
        model = tiny(rope=True, sliding_window=5, attention_backend=name).double()
        model(tokens(), doc_lens=DOCUMENTS).logits.logsumexp(-1).mean().backward()
        found.append([p.grad for p in model.parameters()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", ["causal", "window", "documents"])
@pytest.mark.parametrize("kernel", ["math", "sdpa"])
def test_in_16_bits_a_cpu_is_as_far_from_float64_as_their_roundings(
    kernel: str, shape: str, low: torch.dtype
) -> None:
    """With this CPU's own instructions, where it has some: value and gradients."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(2, 4, 192, 32, generator=draw).to(low) for _ in range(4))
    place = torch.arange(192)
    hidden = place > place[:, None]
    if shape == "window":
        hidden = hidden | (place <= place[:, None] - 40)
    bias = torch.zeros(1, 1, 192, 192, dtype=torch.float64).masked_fill(hidden, -1e4)
    documents = [[50, 100, 42], [192]] if shape == "documents" else None
    found = []
    for dtype, name in ((torch.float64, "math"), (low, kernel)):
        one, two, three = inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        shown = None if name == "sdpa" and shape != "window" else bias.to(dtype)
        y = attend(one, two, three, Scope(backend=name, bias=shown, documents=documents))
        assert y.dtype == dtype
        y.backward(g.to(dtype))
        found.append([y.detach(), *(x.grad for x in inputs)])
    for exact, rounded in zip(*found, strict=True):
        error = (rounded.double() - exact).norm() / exact.norm()
        assert error < torch.finfo(low).eps


def test_what_a_pass_brings_with_it_falls_back_loudly(
    stand_ins: None, caplog: pytest.LogCaptureFixture
) -> None:
    mask = torch.ones(2, 16)
    mask[0, :3] = 0
    want = tiny(rope=True, attention_backend="math")(tokens(), attention_mask=mask).logits
    got = tiny(rope=True, attention_backend="varlen").double()
    with caplog.at_level("WARNING"):
        logits = got(tokens(), attention_mask=mask).logits
    assert difference(logits.float()[:, 3:], want[:, 3:]) < 1e-5
    assert "varlen takes no mask" in caplog.text
    assert "sdpa computes it instead" in caplog.text


def test_flex_does_not_train_on_a_cpu() -> None:
    trial = TrialConfig.from_mapping({"train": {"sequence_length": 16}})
    config = ModelConfig(**{**BASE, "d_model": 64}, rope=True, attention_backend="flex")
    with pytest.raises(ConfigError, match=r"model.attention_backend=flex.*no backward.*CPU.*auto"):
        refuse(config, training_case(trial, config, "cpu"))
    refuse(config, training_case(trial, config, "cuda"))


@pytest.mark.parametrize(
    ("backend", "fields", "trial", "device", "message"),
    [
        ("varlen", {}, {"precision": {"name": "bf16"}}, "cpu", "runs on CUDA only"),
        ("flash", {}, {"precision": {"name": "bf16"}}, "mps", "runs on CUDA only"),
        ("varlen", {}, {}, "cuda", "the precision is fp32"),
        ("flash", {}, {}, "cuda", "the precision is fp32"),
        ("varlen", {"attention_dropout": 0.1}, {"precision": {"name": "bf16"}}, "cuda", "dropout"),
        ("flex", {"attention_dropout": 0.1}, {}, "cuda", "dropout"),
        ("flex", {"position": "relative"}, {}, "cuda", "no fixed order"),
        ("flex", {"d_model": 32}, {}, "cuda", "at least 16"),
    ],
)
def test_what_a_kernel_cannot_serve_is_refused(
    backend: str, fields: dict[str, Any], trial: dict[str, Any], device: str, message: str
) -> None:
    config = ModelConfig(**{**BASE, "d_model": 64, **fields}, attention_backend=backend)
    typed = TrialConfig.from_mapping({"model": {"d_model": 64}, **trial})
    with pytest.raises(ConfigError, match=message):
        refuse(config, training_case(typed, config, device))


@pytest.mark.parametrize("backend", ["flash", "varlen"])
@pytest.mark.parametrize("fields", [{"alibi": True}, {"position": "relative"}], ids=str)
def test_what_no_machine_can_serve_is_refused(backend: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="takes no bias"):
        ModelConfig(**BASE, **fields, attention_backend=backend)
    for other in ("flex", backend):
        with pytest.raises(ConfigError, match="own softmax"):
            ModelConfig(**BASE, block_type="llama", attention_backend=other)


CUDA = Case(device="cuda", dtype="bf16", length=2048)
CPU = Case(device="cpu", dtype="bf16", length=256, low_products=True)


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        (CPU, "math"),
        (replace(CPU, length=512), "math"),
        (replace(CPU, length=513), "sdpa"),
        (replace(CPU, low_products=False), "sdpa"),
        (replace(CPU, dtype="fp32"), "sdpa"),
        (replace(CPU, low_products=None), "math or sdpa"),
        (CUDA, "sdpa"),
        (replace(CUDA, dtype="fp32"), "sdpa"),
        (replace(CUDA, window=True), "varlen"),
        (replace(CUDA, documents=True), "varlen"),
        (replace(CUDA, documents=True, varlen=False), "flex"),
        (replace(CUDA, documents=True, dtype="fp32"), "flex"),
        (replace(CUDA, bias="alibi"), "flex"),
        (replace(CUDA, bias="alibi", triton=False), "sdpa"),
        (replace(CUDA, bias="relative"), "sdpa"),
        (replace(CUDA, window=True, dropout=0.1), "sdpa"),
        (replace(CUDA, window=True, dtype="fp16", softmax="fp16"), "sdpa"),
        (replace(CUDA, documents=True, dtype="fp16", softmax="fp32"), "varlen"),
        (replace(CUDA, masked="a mask"), "sdpa"),
        (replace(CUDA, device="mps", window=True), "sdpa"),
    ],
    ids=str,
)
def test_auto(case: Case, kernel: str) -> None:
    choice = choose(ModelConfig(**BASE), case)
    assert choice.kernel == kernel
    assert choice.reason
    assert choice.refused is None


def test_layers_that_differ_are_told_apart() -> None:
    config = ModelConfig(**{**BASE, "n_layers": 4}, sliding_window_pattern=[64, 64, 64, -1])
    assert [c.kernel for c in choose_all(config, CUDA)] == ["varlen"] * 3 + ["sdpa"]
    found = summary(choose_all(config, CUDA))
    assert list(found) == ["varlen", "sdpa"]
    assert found["varlen"].startswith("3 layers: a window")
    assert [c.kernel for c in choose_all(config, replace(CUDA, length=64))] == ["sdpa"] * 4
    llama = ModelConfig(**BASE, block_type="llama")
    assert list(summary(choose_all(llama, CUDA))) == ["math"]


UNEQUAL = {**BASE, "n_layers": 4, "d_model": 64, "layer_widths": [40, 64, 64, 96]}
"""Heads of 10, 16, 16 and 24."""


def test_layers_with_heads_of_their_own_size_are_told_apart() -> None:
    config = ModelConfig(**UNEQUAL, sliding_window=64)
    assert [c.kernel for c in choose_all(config, CUDA)] == ["sdpa"] + ["varlen"] * 3
    large = ModelConfig(**{**UNEQUAL, "layer_widths": [64, 64, 64, 2048]}, sliding_window=64)
    assert [c.kernel for c in choose_all(large, CUDA)] == ["varlen"] * 3 + ["sdpa"]
    assert "at most 256, and they are 512" in choose_all(large, CUDA)[-1].reason
    found = summary(choose_all(config, replace(CUDA, dtype="fp32")))
    assert found["sdpa"].startswith("1 layers: a window as a table")
    assert found["flex"].startswith("3 layers: a window")


@pytest.mark.parametrize(("backend", "least"), [("varlen", "multiple of 8"), ("flex", "at least")])
def test_heads_of_one_layer_are_reason_enough_to_refuse(backend: str, least: str) -> None:
    config = ModelConfig(**UNEQUAL, attention_backend=backend)
    typed = TrialConfig.from_mapping({"precision": {"name": "bf16"}})
    case = training_case(typed, config, "cuda")
    refuse(ModelConfig(**{**UNEQUAL, "layer_widths": None}, attention_backend=backend), case)
    with pytest.raises(ConfigError, match=f"{least}.*and they are 10"):
        refuse(config, case)


def test_a_pass_takes_for_each_layer_what_serves_its_heads(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def counted(q: Tensor, *rest: Any, **options: Any) -> Tensor:
        sizes.append(q.shape[-1])
        return varlen_attn(q, *rest, **options)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", counted)
    fields = {**UNEQUAL, "rope": True, "sliding_window_pattern": [4, -1]}
    want, got = (
        tiny(**fields, attention_backend=name).double()(tokens(), doc_lens=DOCUMENTS).logits
        for name in ("math", "varlen")
    )
    assert sizes == [16, 16, 24]
    assert difference(got, want) < 1e-12


# ---- on a GPU


ON_GPU = [
    *(("varlen", case) for case in NO_BIAS),
    *((kernel, case) for kernel in ("sdpa", "flex", "auto") for case in WHO_SEES_WHOM),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "case"), ON_GPU)
def test_on_a_gpu_every_kernel_computes_what_math_does_in_float64(kernel: str, case: str) -> None:
    fields, inputs = WHO_SEES_WHOM[case]
    place = {} if "alibi" in fields else {"rope": True}
    size = {"d_model": 128, "max_sequence_length": 512}
    factor = 16
    given = {k: (v * factor).cuda() for k, v in inputs.items()}
    fields = {**fields, **({"sliding_window": 64} if "sliding_window" in fields else {})}
    ids = tokens(length=16 * factor)
    found = []
    for name, dtype in (("math", torch.float64), (kernel, torch.bfloat16)):
        model = tiny(spread=0.05, **fields, **place, **size, attention_backend=name)
        model = model.to("cuda", dtype)
        logits = model(ids.cuda(), **given).logits
        logits.float().logsumexp(-1).mean().backward()
        found.append((logits.double(), [p.grad.double() for p in model.parameters()]))
    (want, gradients), (got, others) = found
    assert difference(got, want) < 0.05
    for one, two in zip(gradients, others, strict=True):
        assert difference(two, one) < 0.1


@pytest.mark.gpu
def test_on_a_gpu_the_same_bits_come_out_twice() -> None:
    torch.set_deterministic_debug_mode("warn")
    try:
        for name in ("varlen", "flex"):
            grads = []
            for _ in range(2):
                model = OLMo(ModelConfig(**{**BASE, "d_model": 128}, attention_backend=name))
                model = model.to("cuda", torch.bfloat16)
                model(tokens().cuda(), doc_lens=DOCUMENTS.cuda()).logits.float().sum().backward()
                grads.append([p.grad for p in model.parameters()])
            assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    finally:
        torch.set_deterministic_debug_mode("default")
