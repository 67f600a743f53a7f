"""The kernels compute one function; variants of the user's own; measurements in passing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.model.attention import Scope, attend
from ablate.model.norm import RMSNorm
from ablate.model.position import Position
from ablate.model.recording import largest_logit
from tests.model.models import BASE, OLMO2, difference, tiny, tokens

SEQUENTIAL_AND_LLAMA = [
    {"rope": True},
    {"alibi": True, "n_kv_heads": 2},
    OLMO2 | {"norm_after": False},
]


@pytest.mark.parametrize("fields", SEQUENTIAL_AND_LLAMA, ids=str)
def test_backends_and_blocks_compute_the_same_function(fields: dict[str, Any]) -> None:
    x = tokens()
    sequential = tiny(**fields)
    want = sequential(x).logits
    assert difference(tiny(**fields, attention_backend="math")(x).logits, want) < 2e-6
    llama = tiny(**fields, block_type="llama")
    state = sequential.state_dict()
    for name in [n for n in state if "att_proj" in n]:
        for part, value in zip(
            "qkv", state.pop(name).split(sequential.blocks[0].widths), strict=True
        ):
            state[name.replace("att_proj", f"{part}_proj")] = value
    llama.load_state_dict(state)
    assert difference(llama(x).logits, want) < 2e-6


def test_grouped_heads_read_the_key_head_of_their_group() -> None:
    q, k, v = (torch.randn(1, h, 5, 8) for h in (6, 2, 2))
    for backend in ("sdpa", "math"):
        got = attend(q, k, v, Scope(backend=backend))
        for head in range(6):
            one = slice(head, head + 1), slice(head // 3, head // 3 + 1)
            want = attend(q[:, one[0]], k[:, one[1]], v[:, one[1]], Scope(backend=backend))
            torch.testing.assert_close(got[:, one[0]], want)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gate_fed_by_two_products_equals_one(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    fields = {"activation_type": "geglu", "include_bias": bias, "layer_norm_type": "rms"}
    found = []
    for large in (10**9, 1):
        monkeypatch.setattr("ablate.model.block.LARGE", large)
        model = tiny(**fields)
        logits = model(tokens()).logits
        logits.logsumexp(-1).mean().backward()
        found.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rms_norm_has_the_derivative_of_its_formula(dtype: torch.dtype, affine: bool) -> None:
    norm = RMSNorm(16, eps=1e-3, affine=affine, bias=False)
    x = torch.randn(3, 5, 16).to(dtype).requires_grad_()
    formula = x.detach().double().requires_grad_()
    y = formula * (formula.square().mean(-1, keepdim=True) + 1e-3).rsqrt()
    if norm.weight is not None:
        nn.init.normal_(norm.weight)
        weight = norm.weight.detach().double().requires_grad_()
        y = weight * y
    out = norm(x)
    g = torch.randn_like(out)
    out.backward(g)
    y.backward(g.double())
    close = (
        {"rtol": 2e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    )
    torch.testing.assert_close(out.double(), y, **close)
    torch.testing.assert_close(x.grad.double(), formula.grad, **close)
    if norm.weight is not None:
        torch.testing.assert_close(norm.weight.grad.double(), weight.grad, **close)


def test_attention_dropout_is_for_training_only() -> None:
    for fields in ({}, {"block_type": "llama"}):
        model = tiny(attention_dropout=0.5, **fields)
        assert torch.equal(model(tokens()).logits, model(tokens()).logits)
        model.train()
        assert not torch.equal(model(tokens()).logits, model(tokens()).logits)


def test_bfloat16_autocast_stays_near_float32() -> None:
    for fields in (OLMO2, {"block_type": "llama", "alibi": True}, {"sliding_window": 4}):
        model = tiny(spread=0.05, **fields)
        with torch.autocast("cpu", torch.bfloat16):
            low = model(tokens()).logits
        assert difference(low.float(), model(tokens()).logits) < 0.05


# ---- flash-attn, with a stand-in that computes the same on a CPU


def band(n: int, window: tuple[int, int]) -> Tensor:
    allowed = torch.ones(n, n, dtype=torch.bool).tril()
    return allowed if window[0] < 0 else allowed.triu(-window[0])


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **o: Any) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = band(q.shape[2], o["window_size"])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, n: int, m: int, **o: Any
) -> Tensor:
    assert a.dtype == torch.int32
    assert n == m == int(a.diff().max())
    parts = [x.split(a.diff().tolist()) for x in (q, k, v)]
    return torch.cat(
        [flash_attn_func(*(x[None] for x in p), **o)[0] for p in zip(*parts, strict=True)]
    )


@pytest.mark.parametrize("fields", [{}, {"sliding_window": 4}], ids=str)
@pytest.mark.parametrize(
    "documents", [None, torch.tensor([[5, 7, 4], [16, 0, 0]])], ids=["whole", "documents"]
)
def test_the_flash_path_computes_the_same_function(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], documents: Tensor | None
) -> None:
    package = SimpleNamespace(
        flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func
    )
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr("ablate.model.kernels.ONLY_CUDA", ())
    common = {"rope": True, "n_kv_heads": 2, **fields}
    x, options = tokens(), {} if documents is None else {"doc_lens": documents}
    flash = tiny(flash_attention=True, **common).bfloat16()
    with flash.recording() as a:
        got = flash(x, **options).logits.float()
    sdpa = tiny(**common).bfloat16()
    with sdpa.recording() as b:
        want = sdpa(x, **options).logits.float()
    assert difference(got, want) < 0.05
    assert a["model/attention_logit_max/0"] == b["model/attention_logit_max/0"]


def test_flash_attention_without_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ConfigError, match="flash-attn"):
        OLMo(ModelConfig(**BASE, flash_attention=True))
    OLMo(ModelConfig(**BASE, flash_attention=True, init_device="meta"))  # to count parameters


# ---- measuring in passing


def test_recording_measures_what_the_kernel_saw() -> None:
    model, x = tiny(**OLMO2), tokens()
    with model.recording() as record:
        out = model(x, output_hidden_states=True)
    assert set(record) == {
        f"model/{k}/{i}" for k in ("attention_logit_max", "activation_rms") for i in (0, 1)
    }
    assert record["model/activation_rms/0"] == pytest.approx(
        out.hidden_states[1].square().mean().sqrt().item()
    )
    assert all(value.ndim == 0 and torch.isfinite(value) for value in record.values())
    assert torch.equal(model(x).logits, out.logits)
    first = dict(record)
    model(x)
    assert record == first, "outside the block nothing is recorded"


def test_the_largest_logit_counts_visible_pairs_only() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    logits = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    assert largest_logit(q, k, Scope(backend="sdpa")) == pytest.approx(
        logits[..., seen].max().item()
    )
    inside = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool() & seen
    scope = Scope(backend="sdpa", documents=[[2, 4], [2, 4]])
    assert largest_logit(q, k, scope) == pytest.approx(logits[..., inside].max().item())


def test_over_several_passes_maxima_and_mean_squares_are_taken() -> None:
    model = tiny()
    singles = []
    for seed in (0, 1):
        with model.recording() as record:
            model(tokens(seed=seed))
        singles.append(record)
    with model.recording() as both:
        model(tokens(seed=0))
        model(tokens(seed=1))
    name = "model/attention_logit_max/1"
    assert both[name] == max(single[name] for single in singles)
    name = "model/activation_rms/1"
    want = torch.stack([single[name] for single in singles]).square().mean().sqrt()
    torch.testing.assert_close(both[name], want)


# ---- variants of the user's own


class Doubling(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Turning(Position):
    def bias(self, length: int, like: Tensor) -> Tensor:
        place = torch.arange(length)
        return torch.sin(place[:, None] - place[None, :] + 0.0).expand(self.config.n_heads, -1, -1)


class Bilinear(nn.Module):
    multiplier = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return a * b * self.scale


class Forgetful(Bilinear):
    reset_parameters = None


HERE = "tests.model.test_attention"
OWN = {
    "norm": {"layer_norm_type": f"{HERE}:Doubling"},
    "position": {"position": f"{HERE}:Turning"},
    "activation, gated": {"activation_type": f"{HERE}:Bilinear"},
    "activation, a function": {"activation_type": "torch:tanh"},
}


@pytest.mark.parametrize("case", OWN)
def test_an_import_path_is_a_variant(case: str) -> None:
    one, two = (OLMo(ModelConfig(**BASE, **OWN[case]), seed=1) for _ in range(2))
    plain = OLMo(ModelConfig(**BASE), seed=1)
    assert torch.equal(one.eval()(tokens()).logits, two.eval()(tokens()).logits)
    assert not torch.equal(one(tokens()).logits, plain.eval()(tokens()).logits)
    one(tokens()).logits.sum().backward()
    documents = torch.tensor([[6, 10], [16, 0]])
    assert torch.isfinite(one(tokens(), doc_lens=documents).logits).all()


def test_a_variant_that_cannot_be_initialised_is_refused() -> None:
    with pytest.raises(ConfigError, match="reset_parameters"):
        OLMo(ModelConfig(**BASE, activation_type=f"{HERE}:Forgetful"))


def test_a_hooked_projection_is_called_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.model.block.LARGE", 1)
    model, seen = tiny(activation_type="swiglu"), []
    model.blocks[0].ff_proj.register_forward_hook(lambda *_: seen.append(1))
    model(tokens())
    assert seen == [1]
