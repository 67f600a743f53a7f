"""Which trials can be trained as one batch of models: those that compute the same graph.

Members of a stack differ in what each does by itself: its seed and first weights, its batches, its
optimiser, rates, clipping and response to spikes. What the model computes must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ablate.config.schema import TrialConfig
from ablate.model.config import ModelConfig

__all__ = ["Stacking", "graph_of", "reason_alone", "stacking_of"]

INITIAL = {"init_fn", "init_std", "init_cutoff_factor", "scale_emb_init", "emb_init_std"}
"""Fields of the model that say how its first weights are drawn."""
INFORMATION = {"init_device", "precision"}
SCALED_POSITIONS = ("sinusoidal", "hybrid")
"""Schemes that scale a table in the graph by the embedding's first standard deviation."""
OF_GRAPH = ("steps", "batch_size", "micro_batch_size", "sequence_length", "device", "threads")
"""Fields of `train`; steps, so that all seats are taken until the end."""
BACKENDS = ("auto", "sdpa", "math")


@dataclass(frozen=True, kw_only=True)
class Stacking:
    stacks: list[list[str]] = field(default_factory=list)
    """Trials of each, in the order of their seats."""
    alone: dict[str, str] = field(default_factory=dict)
    """Trial -> why it is trained by itself."""


def stacking_of(trials: Iterable[tuple[str, Mapping[str, Any]]], size: int) -> Stacking:
    """Stacks of at most `size`, of (id, resolved configuration)."""
    made, graphs = Stacking(), dict[str, list[str]]()
    for id, config in trials:
        trial, model = _typed(config)  # once for both: it is most of the time of a large plan
        reason = _reason(trial, model)
        if reason is not None:
            made.alone[id] = reason
        else:
            graphs.setdefault(_graph(trial, model), []).append(id)
    for ids in graphs.values():
        for i in range(0, len(ids), size):
            part = ids[i : i + size]
            if len(part) > 1:
                made.stacks.append(part)
            else:
                made.alone[part[0]] = "no other trial is left that computes the same graph"
    return made


def reason_alone(config: Mapping[str, Any]) -> str | None:
    """Why a trial cannot be a member of any stack; None where it can."""
    return _reason(*_typed(config))


def graph_of(config: Mapping[str, Any]) -> str:
    """Equal for trials that can share a stack."""
    return _graph(*_typed(config))


def _typed(config: Mapping[str, Any]) -> tuple[TrialConfig, ModelConfig]:
    return TrialConfig.from_mapping(config), ModelConfig.from_mapping(config["model"])


def _reason(trial: TrialConfig, model: ModelConfig) -> str | None:
    train = trial.train
    backend = "flash" if model.flash_attention else model.attention_backend
    dropout = (model.attention_dropout, model.residual_dropout, model.embedding_dropout)
    found = [
        (trial.parallel.name != "none", "it is trained by several processes"),
        (any(dropout), "dropout (all members would draw from one stream of random numbers)"),
        (trial.batching.name != "concat", "its batches differ in length"),
        (trial.data.document_masking, "its documents differ in length"),
        (trial.precision.name.startswith("fp16"), "a gradient scaler of its own"),
        (train.compile is not False, "train.compile"),
        (train.activation_checkpointing is not None, "activation checkpointing"),
        (trial.loss.chunk > 0, "loss.chunk"),
        (model.mlp_chunk > 0, "model.mlp_chunk"),
        (not model.plain_norms, "norms with noise, segments or clipped gradients"),
        (model.position_scheme == "relative", "a trained bias of the attention logits"),
        (backend not in BACKENDS, f"the attention kernel {backend}"),
    ]
    reasons = [reason for holds, reason in found if holds]
    reasons += [f"code of your own ({path})" for path in model.own_modules.values()]
    return "; ".join(reasons) or None


def _graph(trial: TrialConfig, model: ModelConfig) -> str:
    scaled = model.position_scheme in SCALED_POSITIONS
    left_out = INFORMATION if scaled else INFORMATION | INITIAL
    kept = {
        "model": {k: v for k, v in asdict(model).items() if k not in left_out},
        "train": {k: getattr(trial.train, k) for k in OF_GRAPH},
        "precision": trial.precision.name,
        "z_loss": trial.loss.z_loss,
    }
    return json.dumps(kept, sort_keys=True, default=str)
