"""The next round of a sequential search, as a sweep that a person can read and edit."""

from __future__ import annotations

import re
from typing import Any

import yaml

from ablate.config.typed import closest
from ablate.errors import ConfigError, PlanError, StudyError
from ablate.rundir import StudyDir

__all__ = ["next_round"]

KEPT = ("lr", "match", "budget", "decide", "noise", "throughput")


def next_round(study: StudyDir, arm: str) -> tuple[str, str]:
    """(name, text) of the sweep in which `arm` is the baseline and the other factors are varied.

    Its seeds are as many fresh ones: on those that chose the arm, its luck would count against
    every further change.

    Raises:
        StudyError: for a study that no sweep made.
        ConfigError: where it has no such arm.
        PlanError: where nothing is left to vary.
    """
    manifest = study.manifest()
    written = (manifest.get("sweep") or {}).get("written")
    if not written:
        raise StudyError(f"The study {study.name} has no sweep to go on from. Write one by hand.")
    arms = {a["name"]: a for a in manifest["arms"]}
    if arm not in arms:
        reason = f"study {study.name} has no such arm"
        raise ConfigError("--adopt", arm, reason, closest(arm, arms))
    base = arms[manifest["baseline"]]["levels"]
    left = {
        factor: levels
        for factor, levels in written["factors"].items()
        if arms[arm]["levels"].get(factor) == base.get(factor)
    }
    if not left:
        raise PlanError(
            f"Arm {arm} of {study.name} changes every factor of its sweep, so nothing is left to "
            "vary. Write a sweep with new factors and "
            f"baseline: ['{study.name}:{arm}']."
        )
    seeds = sorted({t["seed"] for t in manifest["trials"]})
    name = _next_name(study.name)
    count = len({t["seed"] for t in manifest["trials"] if t["arm"] == arm})
    section: dict[str, Any] = {
        "question": f"What else helps on top of {arm}? ({written['question'].strip()})",
        "baseline": [f"{study.name}:{arm}"],
        "design": "sequential",
        "factors": left,
        "seeds": [seeds[-1] + 1 + i for i in range(count)],
        **{key: written[key] for key in KEPT if written.get(key) is not None},
    }
    text = yaml.safe_dump({"sweep": section}, sort_keys=False, allow_unicode=True, width=110)
    head = f"# @package _global_\n# The round after {study.name}, whose arm {arm} was adopted.\n"
    return name, head + text


def _next_name(name: str) -> str:
    """After `hello` comes `hello-2`, then `hello-3`."""
    match = re.fullmatch(r"(.*)-(\d+)", name)
    return f"{match[1]}-{int(match[2]) + 1}" if match else f"{name}-2"
