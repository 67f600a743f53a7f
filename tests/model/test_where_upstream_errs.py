"""Upstream's bugs, by name, and the right behaviour of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo

T = 8
SMALL: dict[str, Any] = {
    "d_model": 16, "n_heads": 4, "n_layers": 2, "max_sequence_length": 16, "vocab_size": 32,
    "embedding_size": 32, "eos_token_id": 0, "pad_token_id": 0, "attention_dropout": 0.0,
    "residual_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip


def model(**fields: Any) -> OLMo:
    return OLMo(ModelConfig(**{**SMALL, **fields}), seed=1).eval()


def ids(rows: int = 2) -> torch.Tensor:
    return torch.randint(1, 32, (rows, T), generator=torch.Generator().manual_seed(0))


def logits(m: OLMo, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return m(ids(), **inputs).logits


def test_the_embedding_norm_is_initialised_also_after_meta() -> None:
    built = OLMo(ModelConfig(**SMALL, embedding_layer_norm=True, init_device="meta"))
    built.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.fill_(7.0)
    built.reset_parameters(seed=1)
    norm = built.transformer["emb_norm"]
    assert torch.equal(norm.weight, torch.ones(16))
    assert torch.equal(norm.bias, torch.zeros(16))


def test_a_bias_of_the_users_own_keeps_alibi() -> None:
    causal = torch.ones(T, T).tril().bool()
    m = model(alibi=True)
    torch.testing.assert_close(
        logits(m, attention_bias=causal[None, None]), logits(m), rtol=0, atol=1e-6
    )
    assert not torch.allclose(logits(m), logits(model()), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int64])
def test_a_bias_of_any_whole_numbers_says_who_may_attend(dtype: torch.dtype) -> None:
    """Upstream adds uint8 to the attention logits as 0 and 1."""
    block = torch.block_diag(torch.ones(3, 3), torch.ones(5, 5)).tril()
    m = model(rope=True)
    whole = logits(m, attention_bias=block.to(dtype)[None, None])
    alone = m(ids()[:, :3]).logits.detach()
    torch.testing.assert_close(whole[:, :3], alone, rtol=0, atol=1e-6)
    assert not torch.allclose(whole[:, 3:], logits(m)[:, 3:], atol=1e-3)


@pytest.mark.parametrize("view", ["k k", "b k k", "b h k k"])
def test_a_bias_of_every_documented_shape_is_taken(view: str) -> None:
    """Upstream raises IndexError for the two-dimensional one that its docstring names."""
    bias = torch.ones(T, T).tril().bool()
    shape = {"k k": (T, T), "b k k": (2, T, T), "b h k k": (2, 1, T, T)}[view]
    m = model(rope=True)
    torch.testing.assert_close(
        logits(m, attention_bias=bias.expand(shape)), logits(m), rtol=0, atol=1e-6
    )


def test_documents_are_masked_without_flash_attention() -> None:
    """Upstream asserts that flash-attn is installed."""
    m = model(rope=True)
    inside = m(ids(), doc_lens=torch.tensor([[3, 5], [8, 0]]), max_doc_lens=[5, 8]).logits.detach()
    torch.testing.assert_close(inside[0, :3], logits(m)[0, :3], rtol=0, atol=1e-6)
    torch.testing.assert_close(inside[1], logits(m)[1], rtol=0, atol=1e-6)
    alone = m(ids()[:1, 3:]).logits.detach()
    torch.testing.assert_close(inside[0, 3:], alone[0], rtol=0, atol=2e-6)


def test_grouped_queries_work_in_the_llama_block() -> None:
    """Upstream builds the model and fails in its first forward pass."""
    llama = model(block_type="llama", n_kv_heads=2, rope=True)
    sequential = model(n_kv_heads=2, rope=True)
    state = dict(llama.state_dict())
    for layer in range(2):
        for kind in ("weight", "bias"):
            prefix = f"transformer.blocks.{layer}"
            parts = [state.pop(f"{prefix}.{x}_proj.{kind}") for x in "qkv"]
            state[f"{prefix}.att_proj.{kind}"] = torch.cat(parts)
    sequential.load_state_dict(state)
    torch.testing.assert_close(logits(llama), logits(sequential), rtol=0, atol=1e-6)


def test_building_a_model_leaves_the_process_wide_kernel_switches_alone() -> None:
    before = torch.backends.cuda.mem_efficient_sdp_enabled()
    model()
    assert torch.backends.cuda.mem_efficient_sdp_enabled() == before


def test_building_a_model_leaves_the_default_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    model()
    assert torch.equal(torch.random.get_rng_state(), before)


REFUSED: dict[str, dict[str, Any]] = {
    "alibi with rope": {"alibi": True, "rope": True},
    "alibi with flash": {"alibi": True, "flash_attention": True},
    "embedding smaller than vocabulary": {"vocab_size": 40},
    "embedding of no rows": {"embedding_size": 0},
    "group does not divide": {"block_group_size": 3, "n_layers": 4},
    "mqa flag against kv heads": {"multi_query_attention": True, "n_kv_heads": 4},
    "mqa flag off against kv heads": {"multi_query_attention": False, "n_kv_heads": 1},
    "width not a multiple of heads": {"d_model": 18},
    "clip of zero": {"clip_qkv": 0.0},
    "odd swiglu width": {"mlp_hidden_size": 33},
    "kv heads do not divide": {"n_kv_heads": 3},
    "kaiming_normal": {"init_fn": "kaiming_normal"},
    "fan_in": {"init_fn": "fan_in"},
    "odd head size with rope": {"d_model": 12, "rope": True},
    "llama with norm_after": {"block_type": "llama", "norm_after": True},
    "float for a whole number": {"mlp_ratio": 8.0},
    "unknown block": {"block_type": "parallel"},
    "enum in capitals": {"activation_type": "SwiGLU"},
    "dropout below zero": {"attention_dropout": -1.0},
    "dropout of one": {"residual_dropout": 1.0},
}


@pytest.mark.parametrize("name", REFUSED)
def test_pain_32_what_makes_no_sense_is_refused_by_field_and_value(name: str) -> None:
    fields = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        ModelConfig(**{**SMALL, **fields})
    assert caught.value.field.startswith("model.")
    assert "\n" not in str(caught.value)


def test_what_upstream_rejects_is_rejected() -> None:
    """Of the list above, those that upstream refuses when it builds are refused by upstream too."""
    import olmo.config as oc
    from olmo.model import OLMo as Peer

    kinds = {"init_fn": oc.InitFnType}
    agreed = [
        "alibi with rope", "alibi with flash", "embedding smaller than vocabulary",
        "embedding of no rows", "group does not divide", "mqa flag against kv heads",
        "mqa flag off against kv heads", "width not a multiple of heads", "clip of zero",
        "odd swiglu width", "kaiming_normal", "fan_in",
    ]  # fmt: skip
    for name in agreed:
        fields = {k: kinds[k](v) if k in kinds else v for k, v in REFUSED[name].items()}
        with pytest.raises(Exception):  # noqa: B017 (upstream raises six different kinds)
            Peer(oc.ModelConfig(**{**SMALL, **fields}, init_device="cpu"))


def test_flash_attention_without_the_package_is_refused() -> None:
    """Upstream takes SDPA silently."""
    with pytest.raises(ConfigError, match="flash"):
        model(flash_attention=True)
