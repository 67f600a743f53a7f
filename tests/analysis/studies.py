"""Synthetic studies, written through the on-disk contract."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ablate.rundir import State, StudyDir, write_json

DECIDE = {"metric": "val/bpb", "smallest_effect": 0.005, "alpha": 0.05, "correction": "holm"}

Value = float | str
"""A final metric, or a status: diverged, failed, pending, preempted ..."""


def config(seed: int, lr: float | None, diff: Mapping[str, Any], steps: int) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "seed": seed,
        "study": "s",
        "model": {"d_model": 64, "rope": False, "alibi": False},
        "data": {"corpus": "kjv"},
        "train": {"steps": steps, "batch_size": 8},
        "optim": {"lr": lr or 1e-3},
        "precision": {"name": "fp32"},
    }
    for key, (_, new) in diff.items():
        section, _, name = key.partition(".")
        tree[section][name] = new
    return tree


def write_study(
    path: Path,
    values: Mapping[str, Mapping[int, Value]] | Mapping[str, Mapping[tuple[int, float], Value]],
    *,
    references: Mapping[str, str | None] | None = None,
    diffs: Mapping[str, Mapping[str, Any]] | None = None,
    decide: Mapping[str, Any] | None = DECIDE,
    design: str = "one_factor",
    steps: int = 40,
    summary: Callable[[str, int], Mapping[str, Any]] | None = None,
    config_change: Callable[[str, int, dict[str, Any]], None] | None = None,
    parquet: bool = False,
    manifest_extra: Mapping[str, Any] | None = None,
) -> StudyDir:
    """`values[arm][seed]` (or `[seed, lr]`) is the final val/bpb, or the status of a trial without
    one."""
    study = StudyDir(path)
    arms = list(values)
    baseline = arms[0]
    diffs = diffs or {a: ({f"model.{a}": [False, True]} if a != baseline else {}) for a in arms}
    entries = []
    for i, arm in enumerate(arms):
        for key, value in values[arm].items():
            seed, lr = key if isinstance(key, tuple) else (key, None)
            id = f"{arm}-s{seed}" + (f"-lr{lr:g}" if lr else "") + f"-{i:08x}"
            mark = hashlib.sha256(f"{path.name} {id}".encode()).hexdigest()
            entries.append({"id": id, "arm": arm, "seed": seed, "lr": lr, "fingerprint": mark})
            trial = study.trial(id)
            tree = config(seed, lr, diffs.get(arm, {}), steps)
            if config_change:
                config_change(arm, seed, tree)
            trial.path.mkdir(parents=True)
            (trial.path / "config.yaml").write_text(yaml.safe_dump(tree))
            done = not isinstance(value, str)
            status = "done" if done else str(value)
            last = steps if done else steps // 2
            if status == "pending":
                trial.write_state(State(steps=steps))
                continue
            attempt = trial.acquire()
            rng = np.random.default_rng([seed, i])
            final = float(value) if done else 2.5
            write_curve(attempt, final, last, steps, rng)
            if status == "diverged":
                attempt.append("events.jsonl", {"step": last, "kind": "divergence", "cause": "arm"})
            reason = None if done else "loss is nan" if status == "diverged" else "see the log"
            attempt.release(
                State(status=status, outcome=status, reason=reason, step=last, steps=steps)
            )
            if done:
                extra = summary(arm, seed) if summary else {}
                write_json(
                    trial.summary_path,
                    {
                        "val/loss": final * 0.7,
                        "val/bpb": final,
                        "steps": steps,
                        "tokens": steps * 1024,
                        "seconds": 12.0,
                        "tokens_per_second": 1e5,
                        "parameters": 1_000_000 + i,
                        "flops": 6e9,
                        "data_fingerprint": "d" * 64,
                        "device": "cpu",
                        "torch": "2.13.0",
                    }
                    | dict(extra),
                )
            if done and parquet:
                import pandas as pd

                pd.DataFrame.from_records(list(trial.stitched())).to_parquet(trial.metrics_path)
    references = references or {a: (None if a == baseline else baseline) for a in arms}
    manifest: dict[str, Any] = {
        "schema": 1,
        "study": path.name,
        "created": "2025-01-02T03:04:05Z",
        "revision": 1,
        "question": "Which of these help?",
        "design": design,
        "baseline": baseline,
        "factors": {a: [a] for a in arms[1:]},
        "match": "none",
        "budget": {"steps": steps, "tokens": steps * 1024},
        "arms": [
            {
                "name": a,
                "overrides": []
                if a == baseline
                else [f"{k}={v[1]}" for k, v in diffs.get(a, {}).items()],
                "levels": {b: (b if b == a else "baseline") for b in arms[1:]},
                "reference": references[a],
                "diff": dict(diffs.get(a, {})),
                "parameters": 1_000_000 + i,
                "flops_per_token": 6_000_000,
                "resized": {},
            }
            for i, a in enumerate(arms)
        ],
        "trials": entries,
        "code": {"version": "0.1.0", "commit": "abc1234", "dirty": False},
        "environment": {"python": "3.11.9", "torch": "2.13.0", "platform": "Linux"},
        "history": [{"revision": 1, "time": "2025-01-02T03:04:05Z", "what": "launched"}],
    }
    if decide is not None:
        manifest["decide"] = dict(decide)
    study.write_manifest(manifest | dict(manifest_extra or {}))
    return study


def write_curve(
    attempt: Any, final: float, last: int, steps: int, rng: np.random.Generator
) -> None:
    for step in range(1, last + 1):
        share = step / steps
        loss = final * 0.7 + 3.0 * (1 - share) ** 3 + 0.05 * rng.normal()
        row = {
            "step": step,
            "tokens": step * 1024,
            "train/loss": loss,
            "lr": 1e-3,
            "train/grad_norm": 1.0,
        }
        if step % 10 == 0 or step == last:
            row |= {
                "val/loss": final * 0.7 + 3.0 * (1 - share) ** 3,
                "val/bpb": final + 4 * (1 - share) ** 3,
            }
        attempt.append("metrics.jsonl", row)


def values(
    effects: Mapping[str, float],
    seeds: Sequence[int] = (0, 1, 2),
    *,
    sd: float = 0.002,
    seed_sd: float = 0.02,
    rng: int = 0,
) -> dict[str, dict[int, float]]:
    """An additive truth: level 2.0, the arm's effect, a block of the seed, and noise."""
    random = np.random.default_rng(rng)
    block = dict(zip(seeds, random.normal(0, seed_sd, len(seeds)), strict=True))
    return {
        a: {s: 2.0 + e + block[s] + random.normal(0, sd) for s in seeds} for a, e in effects.items()
    }
