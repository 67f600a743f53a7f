"""Small models for the tests of this folder, and upstream's with the same weights."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch import Tensor

from ablate.model import ModelConfig, OLMo

BASE: dict[str, Any] = {
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "vocab_size": 50,
    "embedding_size": 64,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "max_sequence_length": 48,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}
OLMO2: dict[str, Any] = {
    "rope": True,
    "layer_norm_type": "rms",
    "norm_after": True,
    "attention_layer_norm": True,
    "include_bias": False,
    "weight_tying": False,
}


def tiny(seed: int = 0, *, spread: float = 0.3, **fields: Any) -> OLMo:
    """A model in eval mode whose parameters are far enough from zero for differences to show."""
    model = OLMo(ModelConfig(**{**BASE, **fields}), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def tokens(rows: int = 2, length: int = 16, seed: int = 0) -> Tensor:
    return torch.randint(2, 50, (rows, length), generator=torch.Generator().manual_seed(seed))


def upstream(model: OLMo) -> Any:
    """ai2-olmo's model of the same configuration with the same weights."""
    import olmo.config as oc
    from olmo.model import OLMo as Peer

    kinds = {
        "activation_type": oc.ActivationType,
        "block_type": oc.BlockType,
        "layer_norm_type": oc.LayerNormType,
        "init_fn": oc.InitFnType,
    }
    known = {field.name for field in dataclasses.fields(oc.ModelConfig)}
    fields = {k: v for k, v in model.config.to_dict().items() if k in known}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = Peer(
            oc.ModelConfig(**{k: kinds[k](v) if k in kinds else v for k, v in fields.items()})
        )
    peer.load_state_dict(model.state_dict())
    return peer.eval()


def difference(ours: Tensor, theirs: Tensor) -> float:
    """max |Δ| / max |reference|."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()
