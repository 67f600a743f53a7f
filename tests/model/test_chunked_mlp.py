"""A feed-forward in chunks is the feed-forward, forward and backward, and holds less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo

SMALL = {
    "d_model": 32, "n_heads": 4, "n_layers": 2, "max_sequence_length": 24, "vocab_size": 64,
    "embedding_size": None, "eos_token_id": 0, "pad_token_id": 0, "attention_dropout": 0.0,
    "residual_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
KINDS = {
    "gpt2": {"activation_type": "gelu_tanh"},
    "olmo2": {"rope": True, "layer_norm_type": "rms", "norm_after": True, "include_bias": False},
    "llama": {"rope": True, "layer_norm_type": "rms", "block_type": "llama"},
    "peri": {"peri_norm": True, "activation_type": "relu2"},
}


def outcome(model: OLMo, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(ids).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **found}


@pytest.mark.parametrize("chunk", [1, 7, 16, 47])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_the_whole(kind: str, chunk: int) -> None:
    whole = OLMo(ModelConfig(**SMALL, **KINDS[kind]))
    cut = OLMo(ModelConfig(**SMALL, **KINDS[kind], mlp_chunk=chunk))
    ids = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(0))
    expected, found = outcome(whole, ids), outcome(cut, ids)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        error = (found[name] - value).abs().max() / value.abs().max()
        assert error <= 1e-6, name


@pytest.mark.parametrize("strategy", ["whole_layer", "fine_grained"])
def test_it_goes_together_with_activation_checkpointing(strategy: str) -> None:
    whole = OLMo(ModelConfig(**SMALL))
    cut = OLMo(ModelConfig(**SMALL, mlp_chunk=5))
    cut.set_activation_checkpointing(strategy)
    ids = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(0))
    expected, found = outcome(whole, ids), outcome(cut, ids)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_the_inner_activations_of_a_chunk_exist_at_a_time() -> None:
    """What the backward pass keeps, counted by the tensors that autograd saves."""

    def largest(chunk: int) -> int:
        model = OLMo(ModelConfig(**SMALL, mlp_hidden_size=512, mlp_chunk=chunk))
        kept = [0]

        def pack(tensor: Tensor) -> Tensor:
            if tensor.ndim > 1 and tensor.shape[-1] in (256, 512):
                kept.append(tensor.numel() // tensor.shape[-1])
            return tensor

        ids = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(0))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(ids)
        return max(kept)

    assert largest(0) == 48
    assert largest(8) <= 32, "a weight of 32 rows, and nothing of all 48 positions"


def test_a_negative_chunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        ModelConfig(mlp_chunk=-1)
