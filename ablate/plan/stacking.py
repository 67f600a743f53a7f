"""Which trials can be trained as one batch of models: those that compute the same graph.

Members of a stack differ in what each does by itself: its seed and first weights, its batches, its
optimiser, rates, clipping and response to spikes. What the model computes must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
        reason = reason_alone(config)
        if reason is not None:
            made.alone[id] = reason
        else:
            graphs.setdefault(graph_of(config), []).append(id)
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
    model, train = config["model"], config["train"]
    found = [
        (config["parallel"]["name"] != "none", "it is trained by several processes"),
        (_drops(model), "dropout (all members would draw from one stream of random numbers)"),
        (config["batching"]["name"] != "concat", "its batches differ in length"),
        (config["data"]["document_masking"], "its documents differ in length"),
        (config["precision"]["name"].startswith("fp16"), "a gradient scaler of its own"),
        (train["compile"] is True, "train.compile"),
        (train["activation_checkpointing"] is not None, "activation checkpointing"),
        (config["loss"]["chunk"] > 0, "loss.chunk"),
        (model["mlp_chunk"] > 0, "model.mlp_chunk"),
        (not _plain_norms(model), "norms with noise, segments or clipped gradients"),
        (_backend(model) not in BACKENDS, f"the attention kernel {_backend(model)}"),
    ]
    reasons = [reason for holds, reason in found if holds]
    named = [str(model[key]) for key in ("layer_norm_type", "activation_type", "position")]
    reasons += [f"code of your own ({name})" for name in named if ":" in name]
    return "; ".join(reasons) or None


def graph_of(config: Mapping[str, Any]) -> str:
    """Equal for trials that can share a stack."""
    model = config["model"]
    left_out = INFORMATION if model["position"] in SCALED_POSITIONS else INFORMATION | INITIAL
    kept = {
        "model": {k: v for k, v in model.items() if k not in left_out},
        "train": {k: config["train"][k] for k in OF_GRAPH},
        "precision": config["precision"]["name"],
        "z_loss": config["loss"]["z_loss"],
    }
    return json.dumps(kept, sort_keys=True, default=str)


def _drops(model: Mapping[str, Any]) -> bool:
    return any(model[f"{kind}_dropout"] for kind in ("attention", "residual", "embedding"))


def _plain_norms(model: Mapping[str, Any]) -> bool:
    changed = model["norm_noise"] or model["norm_segments"] or model["norm_grad_clip"]
    return not changed and model["layer_norm_scale"]


def _backend(model: Mapping[str, Any]) -> str:
    return "flash" if model["flash_attention"] else str(model["attention_backend"])
