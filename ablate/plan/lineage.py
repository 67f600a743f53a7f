"""A baseline that an earlier study found: `sweep.baseline: [hello:+norm-rms, ...]`.

The arm's overrides, and what matching resized, become the new baseline. The lineage goes into the
manifest: each study and arm that was adopted on the way, the oldest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.config.typed import closest
from ablate.errors import ConfigError, PlanError, StudyError, show
from ablate.plan.canonical import difference, flat
from ablate.rundir import StudyDir, find_study

__all__ = ["Adopted", "adopt", "notes"]

ADOPTED = re.compile(r"[^=:\s]+:[^=:\s]+")
NOT_OF_AN_ARM = ("study", "runs_dir", "force", "track", "cluster", "sweep", "seed", "design")


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """The baseline's overrides with adopted arms spelled out, and where they are from."""

    overrides: list[str]
    lineage: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] | None = None
    """Of the arm that was adopted last; what differs from it is noted."""


def adopt(baseline: Sequence[str], runs_dir: str | Path) -> Adopted:
    """Spells out every `STUDY:ARM` among the overrides of a baseline.

    Raises:
        StudyError: where there is no such study.
        ConfigError: where it has no such arm.
        PlanError: for an arm that was configured in code, not by overrides.
    """
    overrides: list[str] = []
    lineage: list[dict[str, Any]] = []
    config = None
    for item in baseline:
        if not ADOPTED.fullmatch(item):
            overrides.append(item)
            continue
        study_name, _, arm_name = item.partition(":")
        study = find_study(study_name, runs_dir)
        manifest = study.manifest()
        arms = {arm["name"]: arm for arm in manifest["arms"]}
        if arm_name not in arms:
            reason = f"study {study_name} has no such arm"
            raise ConfigError("sweep.baseline", item, reason, closest(arm_name, arms))
        if "base" not in manifest:
            raise PlanError(
                f"sweep.baseline={item}: the trials of {study_name} were run one by one, so it "
                "has no baseline to build on. Write the arm's overrides."
            )
        overrides += spelled(manifest, arms[arm_name])
        lineage += (manifest.get("design_info") or {}).get("lineage", [])
        lineage.append(_entry(study, manifest, arms[arm_name]))
        config = _config(study, manifest, arm_name)
    return Adopted(overrides=overrides, lineage=lineage, config=config)


def spelled(manifest: Mapping[str, Any], arm: Mapping[str, Any]) -> list[str]:
    """The overrides that make this arm, on top of the defaults."""
    kept = [o for o in [*manifest["base"], *arm["overrides"]] if not _of_the_study(o)]
    return kept + [f"{name}={show(to)}" for name, (_, to) in arm.get("resized", {}).items()]


def _of_the_study(override: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return key.split(".")[0] in NOT_OF_AN_ARM or key == "train.steps"


def _entry(study: StudyDir, manifest: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "study": study.name,
        "arm": arm["name"],
        "overrides": arm["overrides"],
        "seeds": sorted({t["seed"] for t in manifest["trials"] if t["arm"] == arm["name"]}),
        "arms": len(manifest["arms"]),
        "decide_hash": manifest.get("decide_hash"),
        "revision": manifest.get("revision"),
    }


def _config(study: StudyDir, manifest: Mapping[str, Any], arm: str) -> dict[str, Any] | None:
    id = next((t["id"] for t in manifest["trials"] if t["arm"] == arm), None)
    try:
        return study.trial(id).config() if id else None
    except StudyError:
        return None


def notes(adopted: Adopted, config: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[str]:
    """What whoever adopts an arm has to know."""
    if not adopted.lineage:
        return
    last = adopted.lineage[-1]
    name = f"{last['study']}:{last['arm']}"
    common = sorted(set(last["seeds"]) & set(seeds))
    if common:
        fresh = max(last["seeds"]) + 1
        yield (
            f"{name} was chosen on seeds {', '.join(map(str, common))}, and its luck there counts "
            f"against every arm of this round. Take others: sweep.seeds="
            f"[{','.join(str(fresh + i) for i in range(len(seeds)))}]."
        )
    if adopted.config is None:
        return
    changed = difference(adopted.config, config)
    changed.pop("train.steps", None)
    if changed:
        said = ", ".join(f"{f} {show(a)} to {show(b)}" for f, (a, b) in changed.items())
        yield f"The baseline is not quite {name} as it ran: {said}."
    rate = dict(flat(adopted.config)).get("optim.lr")
    yield f"{name} is adopted as it is written; its learning rate is optim.lr={show(rate)}."
