"""Standard deviations of the initialisation, tensor by tensor."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from tests.model.models import BASE

D, LAYERS, S = 128, 3, 0.02
H = D * 4 // 2
TRUNCATED = 0.98658  # standard deviation of a standard normal cut at ±3

PARTS = ("wte", "wpe", "att_proj", "ff_up", "ff_gate", "attn_out", "ff_out", "head")
depth = range(1, LAYERS + 1)


def stds(**over: Any) -> dict[str, list[float]]:
    return {part: [S] * LAYERS for part in PARTS} | {
        k: [v] * LAYERS if isinstance(v, float) else v for k, v in over.items()
    }


inverse, shallow = D**-0.5, S / math.sqrt(2 * LAYERS)
MITCHELL = dict.fromkeys(PARTS, inverse) | {
    "attn_out": [(2 * D * i) ** -0.5 for i in depth],
    "ff_out": [(2 * H * i) ** -0.5 for i in depth],
}
LLAMA = {"attn_out": shallow, "ff_out": shallow, "ff_up": shallow, "head": inverse, "wte": 1.0}
DEEP = [S / math.sqrt(2 * i) for i in depth]
EXPECTED: dict[str, tuple[dict[str, list[float]], dict[str, Any]]] = {
    "normal": (stds(), {}),
    "mitchell": (stds(**MITCHELL), {}),
    "full_megatron": (stds(attn_out=shallow, ff_out=shallow, head=inverse), {}),
    "gpt2": (stds(attn_out=shallow, ff_out=shallow), {}),
    "llama": (stds(**LLAMA), {}),
    "llama_depth": (stds(**LLAMA | {"attn_out": DEEP, "ff_out": DEEP, "ff_up": DEEP}), {}),
    "normal, own embedding": (stds(wte=0.5), {"emb_init_std": 0.5}),
    "full_megatron, scaled embedding": (
        stds(attn_out=shallow, ff_out=shallow, head=inverse, wte=S * math.sqrt(D)),
        {"scale_emb_init": True},
    ),
}


def matrices(model: OLMo, layer: int) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    block = {
        k: state[f"transformer.blocks.{layer}.{k}.weight"]
        for k in ("att_proj", "attn_out", "ff_out")
    }
    up, gate = state[f"transformer.blocks.{layer}.ff_proj.weight"].chunk(2)
    whole = {"wte": "wte", "wpe": "wpe", "head": "ff_out"}
    top = {k: state[f"transformer.{name}.weight"] for k, name in whole.items()}
    return block | top | {"ff_up": up, "ff_gate": gate}


@pytest.mark.parametrize("case", EXPECTED)
def test_every_matrix_has_the_standard_deviation_of_its_scheme(case: str) -> None:
    want, fields = EXPECTED[case]
    name = case.split(",")[0]
    sizes = {"d_model": D, "n_layers": LAYERS, "embedding_size": 512, "max_sequence_length": 256}
    config = ModelConfig(**{**BASE, **sizes, "weight_tying": False, "init_fn": name, **fields})
    model = OLMo(config)
    cut = TRUNCATED if name not in ("normal", "gpt2") else 1.0
    for layer in range(LAYERS):
        for part, matrix in matrices(model, layer).items():
            std = want[part][layer] * cut
            assert matrix.std().item() == pytest.approx(std, rel=0.03), (part, layer)
            assert abs(matrix.mean().item()) < 5 * std / math.sqrt(matrix.numel())
            if cut != 1.0:
                assert matrix.abs().max() <= 3 * want[part][layer] * 1.0001


@pytest.mark.parametrize("init_fn", ["normal", "mitchell", "full_megatron"])
def test_upstream_draws_with_the_same_standard_deviations(init_fn: str) -> None:
    import olmo.config as oc
    from olmo.model import OLMo as Peer

    fields = {
        **BASE,
        "d_model": D,
        "n_layers": LAYERS,
        "embedding_size": 512,
        "weight_tying": False,
    }
    model = OLMo(ModelConfig(**fields, init_fn=init_fn))
    torch.manual_seed(0)
    peer = Peer(oc.ModelConfig(**fields, init_fn=oc.InitFnType(init_fn)))
    for name, theirs in peer.state_dict().items():
        ours = model.state_dict()[name]
        assert ours.std(correction=0) == pytest.approx(theirs.std(correction=0).item(), rel=0.06), (
            name
        )


def test_norms_start_at_one_and_biases_at_zero_the_embedding_norm_included() -> None:
    model = OLMo(
        ModelConfig(
            **BASE, embedding_layer_norm=True, attention_layer_norm=True, init_device="meta"
        )
    )
    model.to_empty(device="cpu")
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_f" in name:
            assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name


def uniform_std(config: ModelConfig, part: Any) -> float:
    """An init function of the user's own."""
    return 0.5 if part.role == "qkv" else 0.1


def test_an_init_function_of_ones_own() -> None:
    model = OLMo(ModelConfig(**BASE, init_fn="tests.model.test_init:uniform_std"))
    assert model.transformer["blocks"][0].att_proj.weight.detach().std() == pytest.approx(
        0.5, rel=0.05
    )
    assert model.transformer["wte"].weight.detach().std() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    "name", ["kaiming_normal", "fan_in", "nope", "tests.model.test_init:nope", "no.such:thing"]
)
def test_an_init_function_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.init_fn"):
        OLMo(ModelConfig(**BASE, init_fn=name))
