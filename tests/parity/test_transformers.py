"""Logits equal those of transformers' GPT2, Llama, Olmo, Olmo2 and Olmo3, weights carried over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ablate.model import ModelConfig, OLMo

LIMIT = 1e-6
D, HEADS, KV, LAYERS, INNER, VOCAB, LENGTH = 48, 4, 2, 4, 40, 61, 24
COMMON: dict[str, Any] = {
    "d_model": D, "n_heads": HEADS, "n_layers": LAYERS, "max_sequence_length": LENGTH,
    "vocab_size": VOCAB, "embedding_size": VOCAB, "eos_token_id": 0, "pad_token_id": 0,
    "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
MODERN: dict[str, Any] = {
    **COMMON, "rope": True, "include_bias": False, "mlp_hidden_size": 2 * INNER,
    "weight_tying": False, "rope_theta": 500000,
}  # fmt: skip
THEIRS: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": D, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "max_position_embeddings": LENGTH, "tie_word_embeddings": False,
    "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0, "attn_implementation": "eager",
}  # fmt: skip
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 500000.0}
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "original_max_position_embeddings": 8,
}  # fmt: skip


def jitter(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def from_gpt2(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Conv1D keeps its weights transposed."""
    out = {
        "transformer.wte.weight": state["transformer.wte.weight"],
        "transformer.wpe.weight": state["transformer.wpe.weight"],
        "transformer.ln_f.weight": state["transformer.ln_f.weight"],
        "transformer.ln_f.bias": state["transformer.ln_f.bias"],
    }
    names = {
        "ln_1": "attn_norm", "ln_2": "ff_norm", "attn.c_attn": "att_proj", "attn.c_proj":
        "attn_out",
        "mlp.c_fc": "ff_proj", "mlp.c_proj": "ff_out",
    }  # fmt: skip
    for layer in range(LAYERS):
        for theirs, ours in names.items():
            for kind in ("weight", "bias"):
                value = state[f"transformer.h.{layer}.{theirs}.{kind}"]
                value = value.T if kind == "weight" and "ln" not in theirs else value
                out[f"transformer.blocks.{layer}.{ours}.{kind}"] = value
    return out


def from_modern(state: dict[str, Tensor], norms: tuple[str, str] | None) -> dict[str, Tensor]:
    """Olmo, Olmo2, Olmo3 and Llama; `norms` are their names of attn_norm and ff_norm."""
    out = {
        "transformer.wte.weight": state["model.embed_tokens.weight"],
        "transformer.ff_out.weight": state["lm_head.weight"],
    }
    if norms:
        out["transformer.ln_f.weight"] = state["model.norm.weight"]
    for layer in range(LAYERS):
        theirs, ours = f"model.layers.{layer}", f"transformer.blocks.{layer}"
        qkv = [state[f"{theirs}.self_attn.{x}_proj.weight"] for x in "qkv"]
        out[f"{ours}.att_proj.weight"] = torch.cat(qkv)
        out[f"{ours}.attn_out.weight"] = state[f"{theirs}.self_attn.o_proj.weight"]
        up_gate = [state[f"{theirs}.mlp.{x}_proj.weight"] for x in ("up", "gate")]
        out[f"{ours}.ff_proj.weight"] = torch.cat(up_gate)
        out[f"{ours}.ff_out.weight"] = state[f"{theirs}.mlp.down_proj.weight"]
        for x in "qk":
            if f"{theirs}.self_attn.{x}_norm.weight" in state:
                out[f"{ours}.{x}_norm.weight"] = state[f"{theirs}.self_attn.{x}_norm.weight"]
        for name, their_name in zip(("attn_norm", "ff_norm"), norms or (), strict=False):
            out[f"{ours}.{name}.weight"] = state[f"{theirs}.{their_name}.weight"]
    return out


PRE = ("input_layernorm", "post_attention_layernorm")
POST = ("post_attention_layernorm", "post_feedforward_layernorm")
RMS: dict[str, Any] = {"layer_norm_type": "rms", "layer_norm_eps": 1e-6}
OLMO2: dict[str, Any] = {**MODERN, **RMS, "norm_after": True, "attention_layer_norm": True}
WINDOWS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]


def gpt2(activation: str) -> tuple[Any, ModelConfig, Any]:
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=LENGTH, n_embd=D, n_layer=LAYERS, n_head=HEADS,
            activation_function=activation, attn_implementation="eager",
        )
    )  # fmt: skip
    kind = {"gelu": "gelu", "gelu_new": "gelu_tanh"}[activation]
    return theirs, ModelConfig(**COMMON, activation_type=kind), from_gpt2


def llama(block_type: str) -> tuple[Any, ModelConfig, Any]:
    config = transformers.LlamaConfig(
        **THEIRS, num_key_value_heads=KV, rms_norm_eps=1e-6, rope_parameters=ROPE
    )
    fields = {**MODERN, **RMS, "n_kv_heads": KV, "block_type": block_type}
    return transformers.LlamaForCausalLM(config), ModelConfig(**fields), convert(PRE)


def olmo() -> tuple[Any, ModelConfig, Any]:
    config = transformers.OlmoConfig(**THEIRS, clip_qkv=0.3, rope_parameters=ROPE)
    fields = {**MODERN, "layer_norm_with_affine": False, "clip_qkv": 0.3}
    return transformers.OlmoForCausalLM(config), ModelConfig(**fields), convert(None)


def olmo2() -> tuple[Any, ModelConfig, Any]:
    config = transformers.Olmo2Config(
        **THEIRS, num_key_value_heads=KV, rms_norm_eps=1e-6, rope_parameters=ROPE
    )
    fields = {**OLMO2, "n_kv_heads": KV}
    return transformers.Olmo2ForCausalLM(config), ModelConfig(**fields), convert(POST)


def olmo3(yarn: bool) -> tuple[Any, ModelConfig, Any]:
    config = transformers.Olmo3Config(
        **THEIRS, num_key_value_heads=KV, rms_norm_eps=1e-6, sliding_window=5, layer_types=WINDOWS,
        rope_parameters={"sliding_attention": ROPE, "full_attention": YARN if yarn else ROPE},
    )  # fmt: skip
    fields = {**OLMO2, "n_kv_heads": KV, "sliding_window_pattern": [5, 5, 5, -1]}
    if yarn:
        fields |= {"yarn_factor": 8.0, "yarn_original_length": 8}
    return transformers.Olmo3ForCausalLM(config), ModelConfig(**fields), convert(POST)


def convert(norms: tuple[str, str] | None) -> Any:
    return lambda state: from_modern(state, norms)


CASES = {
    "gpt2-gelu": lambda: gpt2("gelu"),
    "gpt2-tanh": lambda: gpt2("gelu_new"),
    "llama": lambda: llama("sequential"),
    "llama-block": lambda: llama("llama"),
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3-windows": lambda: olmo3(False),
    "olmo3-windows-yarn": lambda: olmo3(True),
}


def split(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The fused query/key/value projection cut for the llama block."""
    kv = KV * D // HEADS
    out = {}
    for name, value in state.items():
        if name.endswith("att_proj.weight"):
            for x, part in zip("qkv", value.split([D, kv, kv]), strict=True):
                out[name.replace("att_proj", f"{x}_proj")] = part
        else:
            out[name] = value
    return out


@pytest.mark.parametrize("name", CASES)
def test_pain_39_logits_equal_transformers(name: str) -> None:
    # Their weights are drawn from it; with others rounding alone may reach 1.1e-6.
    torch.manual_seed(0)
    theirs, config, converted = CASES[name]()
    jitter(theirs)
    state = converted(theirs.state_dict())
    model = OLMo(config)
    model.load_state_dict(split(state) if config.block_type == "llama" else state, strict=True)
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mine, reference = model.eval()(ids).logits, theirs.eval()(ids).logits
    found = ((mine - reference).abs().max() / reference.abs().max()).item()
    print(f"{name}: {found:.2g}")
    assert found <= LIMIT
