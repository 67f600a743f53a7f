"""Other people's implementations of a model, where they are installed, to be timed beside ours.

Each is built as its own documentation builds it, with weights of its own of the same shapes, and
computes its loss as its users do.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.imports import is_import_path
from ablate.model import ModelConfig

__all__ = ["PEERS", "Peer", "is_installed"]

Loss = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Peer:
    module: str
    """That has to be importable."""
    objection: Callable[[ModelConfig], str | None]
    """Why it cannot be this model; None: it can."""
    build: Callable[[ModelConfig], nn.Module]
    loss: Loss
    """Mean cross-entropy of the next tokens, in float32."""


def is_installed(peer: Peer) -> bool:
    return importlib.util.find_spec(peer.module) is not None


# ---- ai2-olmo


def _ai2_fields() -> set[str]:
    from olmo.config import (  # pyright: ignore[reportMissingImports]
        ModelConfig as PeerConfig,
    )

    return {field.name for field in dataclasses.fields(PeerConfig)}


def _ai2_objection(config: ModelConfig) -> str | None:
    theirs, default = _ai2_fields(), ModelConfig()
    same = {"position", "attention_backend", "yarn_original_length"}
    for name, value in config.to_dict().items():
        if name not in theirs and name not in same and value != getattr(default, name):
            return f"has no field {name}, which is {value}"
    scheme = config.position_scheme
    if scheme not in ("learned", "rope", "alibi"):
        return f"has no position scheme {scheme}"
    if config.activation_type not in ("gelu", "relu", "swiglu"):
        return f"has no activation {config.activation_type}"
    return None


def _ai2(config: ModelConfig) -> nn.Module:
    from olmo import config as olmo  # pyright: ignore[reportMissingImports]
    from olmo.model import OLMo  # pyright: ignore[reportMissingImports]

    fields = {k: v for k, v in config.to_dict().items() if k in _ai2_fields()}
    kinds = {
        "activation_type": olmo.ActivationType,
        "block_type": olmo.BlockType,
        "layer_norm_type": olmo.LayerNormType,
    }
    fields |= {name: kind(fields[name]) for name, kind in kinds.items()}
    fields |= {"init_fn": olmo.InitFnType("normal"), "init_device": "cpu", "precision": None}
    return OLMo(olmo.ModelConfig(**fields))


def logits_loss(model: nn.Module, ids: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
    logits = model(ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


# ---- transformers


def _family(c: ModelConfig) -> str | None:
    """Which of its models this one is."""
    rms, scaled = c.layer_norm_type == "rms", c.layer_norm_with_affine
    plain = not (c.peri_norm or c.embedding_layer_norm or c.clip_qkv or c.scale_logits)
    if not plain or is_import_path(c.activation_type) or not c.plain_norms:
        return None
    windows = c.sliding_window_pattern is not None or c.sliding_window is not None
    learned = c.position_scheme == "learned" and c.include_bias and c.weight_tying
    smooth = c.activation_type in ("gelu", "gelu_tanh")
    if learned and smooth and not (rms or c.norm_after or c.attention_layer_norm or windows):
        return "gpt2"
    gated = c.position_scheme == "rope" and c.activation_type == "swiglu" and not c.include_bias
    if not gated or c.yarn_factor is not None:
        return None
    if rms and c.norm_after and c.attention_layer_norm and not c.attention_layer_norm_per_head:
        return "olmo3" if windows else "olmo2"
    if windows or c.norm_after or c.attention_layer_norm:
        return None
    if rms:
        return "llama" if scaled else None
    return None if scaled else "olmo1"


def _hugging_objection(config: ModelConfig) -> str | None:
    return None if _family(config) else "has no such model"


def _hugging_face(c: ModelConfig) -> nn.Module:
    import transformers as hf

    family = _family(c)
    if family == "gpt2":
        activation = "gelu" if c.activation_type == "gelu" else "gelu_new"
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=c.embedding_rows, n_positions=c.max_sequence_length, n_embd=c.d_model,
                n_layer=c.n_layers, n_head=c.n_heads, activation_function=activation,
                n_inner=c.hidden_size, resid_pdrop=c.residual_dropout, use_cache=False,
                embd_pdrop=c.embedding_dropout, attn_pdrop=c.attention_dropout,
                bos_token_id=0, eos_token_id=0,
            )
        )  # fmt: skip
    kinds = {
        "olmo1": (hf.OlmoConfig, hf.OlmoForCausalLM),
        "olmo2": (hf.Olmo2Config, hf.Olmo2ForCausalLM),
        "olmo3": (hf.Olmo3Config, hf.Olmo3ForCausalLM),
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM),
    }
    config, model = kinds[family or ""]
    windows: dict[str, Any] = {}
    if family == "olmo3":
        each = [c.window(i) for i in range(c.n_layers)]
        windows["sliding_window"] = next(w for w in each if w is not None)
        windows["layer_types"] = ["sliding_attention" if w else "full_attention" for w in each]
    return model(
        config(
            vocab_size=c.embedding_rows, hidden_size=c.d_model, intermediate_size=c.inner_size,
            num_hidden_layers=c.n_layers, num_attention_heads=c.n_heads, use_cache=False,
            num_key_value_heads=c.effective_n_kv_heads, tie_word_embeddings=c.weight_tying,
            max_position_embeddings=c.max_sequence_length, attention_dropout=c.attention_dropout,
            bos_token_id=0, eos_token_id=0, pad_token_id=None, **windows,
        )
    )  # fmt: skip


def own_loss(model: nn.Module, ids: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
    """As its Trainer asks for it."""
    return model(ids, labels=ids).loss


PEERS = {
    "ai2-olmo": Peer(module="olmo", objection=_ai2_objection, build=_ai2, loss=logits_loss),
    "transformers": Peer(
        module="transformers", objection=_hugging_objection, build=_hugging_face, loss=own_loss
    ),
}
