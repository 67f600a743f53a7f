"""Configuration to stable id: the same fingerprint is the same trial.

It covers what can change the result (model, data, optimiser, budget, precision, threads, seed, and
the code behind import paths), not where the trial runs, how often it is saved, or who watches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["fingerprint", "trial_id"]

TOP_LEVEL = {"study", "runs_dir", "force", "track", "cluster", "sweep"}
NESTED = {
    "train": {"checkpoint_every", "keep_checkpoints", "keep_final", "device"},
    "data": {"cache_dir"},
    "model": {"init_device", "precision"},
    "parallel": {"wrapping_strategy", "shard_size", "grad_sync_mode", "timeout"},
}
YOUNGER = {
    "loss": {"chunk": 0},
    "train": {"compile_mode": "default", "check_causality": True},
    "model": {"mlp_chunk": 0},
    "cache": {"preheat": 0, "preheat_n": [3], "prompts": 64, "prompt_tokens": 32},
    "precision": {"fused_norms": True},
    "evaluate": {"token_noise": None, "shifted_data": None},
}
"""Fields that came later, with the value that changes nothing: such a trial is still the same."""

OFF = {"parallel": "none", "batching": "concat", "cache": "none"}
"""Sections that are not there where their name is this one, and nothing is preheated."""


def fingerprint(config: Mapping[str, Any]) -> str:
    """The 64 hex digits of a resolved configuration tree; key order does not matter."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        off = key in OFF and value["name"] == OFF[key] and not value.get("preheat")
        if key in TOP_LEVEL or off:
            continue
        if key in NESTED or key in YOUNGER:
            dropped, younger = NESTED.get(key, set()), YOUNGER.get(key, {})
            value = {
                k: v
                for k, v in value.items()
                if k not in dropped and not (k in younger and v == younger[k])
            }
            if key in YOUNGER and not value:
                continue
        kept[key] = value
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(text.encode()).hexdigest()


def trial_id(arm: str, config: Mapping[str, Any], *, lr: float | None = None) -> str:
    """`<arm>-s<seed>[-lr<lr>]-<8 hex of the fingerprint>`; `lr` where the study varies it."""
    rate = f"-lr{lr:g}" if lr is not None else ""
    return f"{arm}-s{config['seed']}{rate}-{fingerprint(config)[:8]}"
