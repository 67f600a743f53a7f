"""How fast arms ran here before: hours of a plan, and `match: wallclock`.

Speeds are tokens per second of finished trials, by arm. The same model under the same batch and
precision is the same speed; any other is read off the FLOPs, at the rate that the nearest one got.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.config.fingerprint import fingerprint
from ablate.errors import StudyError
from ablate.rundir import StudyDir, list_studies

__all__ = ["Speed", "Speeds", "speed_key", "speeds_on_disk"]

OF_SPEED = ("batch_size", "micro_batch_size", "sequence_length", "threads", "device", "compile",
            "compile_mode", "activation_checkpointing")  # fmt: skip
TRIALS_READ = 3
"""Of each arm; a median needs no more."""
STUDIES_READ = 50
NEAR = 2.0
"""FLOPs per token may differ by this factor for a speed to say something."""


def speed_key(config: Mapping[str, Any]) -> str:
    """Of everything that decides how fast a resolved configuration trains, but the machine."""
    train = {name: value for name, value in config["train"].items() if name in OF_SPEED}
    kept = {"model": config["model"], "precision": config["precision"], "train": train,
            "optim": {"name": config["optim"]["name"]}}  # fmt: skip
    return fingerprint({**kept, "clip": config["clip"]["name"]})[:16]


@dataclass(frozen=True, kw_only=True)
class Speed:
    study: str
    arm: str
    key: str | None
    flops_per_token: int
    tokens_per_second: float


@dataclass(frozen=True)
class Speeds:
    """What was measured, the newest study first."""

    measured: list[Speed]

    def exact(self, key: str) -> Speed | None:
        return next((speed for speed in self.measured if speed.key == key), None)

    def together(self, one: str, other: str) -> tuple[Speed, Speed] | None:
        """Both as the newest study measured them that ran both: under the same load."""
        by_study: dict[str, dict[str | None, Speed]] = {}
        for speed in self.measured:
            by_study.setdefault(speed.study, {}).setdefault(speed.key, speed)
        for keys in by_study.values():
            if one in keys and other in keys:
                return keys[one], keys[other]
        return None

    def near(self, flops_per_token: int) -> Speed | None:
        """The nearest in FLOPs per token, within a factor of NEAR."""
        close = [
            (max(s.flops_per_token, flops_per_token) / min(s.flops_per_token, flops_per_token), s)
            for s in self.measured
            if s.flops_per_token > 0
        ]
        close = [pair for pair in close if pair[0] <= NEAR]
        return min(close, key=lambda pair: pair[0])[1] if close else None


def speeds_on_disk(runs_dir: str) -> Speeds:
    found = []
    for study in list_studies(runs_dir)[:STUDIES_READ]:
        try:
            found += _of_study(study)
        except (StudyError, KeyError, TypeError):
            continue  # a damaged study is no reason not to plan a new one
    return Speeds(found)


def _of_study(study: StudyDir) -> list[Speed]:
    manifest, found = study.manifest(), []
    by_arm: dict[str, list[str]] = {}
    for trial in manifest["trials"]:
        by_arm.setdefault(trial["arm"], []).append(trial["id"])
    for arm in manifest["arms"]:
        rates = []
        for id in by_arm.get(arm["name"], [])[:TRIALS_READ]:
            summary = study.trial(id).summary() or {}
            if summary.get("tokens_per_second") and "stacked" not in summary:
                rates.append(float(summary["tokens_per_second"]))
        if rates:
            found.append(
                Speed(
                    study=study.name,
                    arm=arm["name"],
                    key=arm.get("speed"),
                    flops_per_token=arm["flops_per_token"],
                    tokens_per_second=statistics.median(rates),
                )
            )
    return found
