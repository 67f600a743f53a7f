"""Trials that are run without a sweep: each adds its arm and itself to its study's manifest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ablate.errors import StudyError
from ablate.plan import (
    DecideConfig,
    SingleTrial,
    code_version,
    completed,
    decide_hash,
    difference,
    environment,
)
from ablate.rundir import SCHEMA_VERSION, StudyDir, TrialDir

__all__ = ["DESIGN", "record_single"]

DESIGN = "singles"
"""The design of a study whose arms came one by one; its baseline is the first of them."""

PER_TRIAL = ("seed", "study", "runs_dir", "force", "track", "cluster")


def record_single(single: SingleTrial) -> TrialDir:
    """The trial's folder in its study, made where it is new; the same fingerprint is the same
    trial.

    Raises:
        StudyError: where the study was frozen by a sweep that does not contain this trial.
    """
    config = single.trial.config
    study = StudyDir(Path(config["runs_dir"]) / single.study)
    with study.lock():
        manifest = study.manifest() if study.exists() else _new_manifest(single)
        known = next(
            (t for t in manifest["trials"] if t["fingerprint"] == single.trial.fingerprint), None
        )
        if known is not None:
            trial = study.trial(known["id"])
            trial.create(config, config["train"]["steps"])
            return trial
        if manifest["design"] != DESIGN:
            raise StudyError(
                f"The study {single.study} was frozen by a sweep ({manifest['design']}), which "
                f"does not have this trial. Give it another study: study={single.study}-more"
            )
        arm = _add_arm(manifest, study, single)
        id = single.trial.id.replace(single.arm.name, arm, 1)
        trial = study.trial(id)
        trial.create(config, config["train"]["steps"])
        manifest["trials"].append({**single.trial.to_json(), "id": id, "arm": arm})
        study.write_manifest(manifest)
        return trial


def _new_manifest(single: SingleTrial) -> dict[str, Any]:
    now, decide = time.time(), DecideConfig().frozen(1)
    steps = single.trial.config["train"]["steps"]
    return {
        "schema": SCHEMA_VERSION,
        "study": single.study,
        "created": now,
        "revision": 1,
        "question": "",
        "design": DESIGN,
        "baseline": single.arm.name,
        "factors": {},
        "decide": decide,
        "decide_hash": decide_hash(decide),
        "match": "none",
        "budget": {"steps": steps, "tokens": None},
        "arms": [],
        "trials": [],
        "code": code_version(),
        "environment": environment(),
        "history": [{"revision": 1, "time": now, "what": "made by ablate train"}],
    }


def _add_arm(manifest: dict[str, Any], study: StudyDir, single: SingleTrial) -> str:
    """The name of the trial's arm in the manifest; the arm is appended where it is new.

    Two arms whose overrides read alike may differ all the same (other data): the second one gets
    a name of its own.
    """
    name, own = single.arm.name, _of_arm(completed(single.trial.config))
    for candidate in (name, f"{name}-{single.trial.fingerprint[:8]}"):
        example = next((t for t in manifest["trials"] if t["arm"] == candidate), None)
        if example is None:
            name = candidate
            break
        if _of_arm(completed(study.trial(example["id"]).config())) == own:
            return candidate
    arm = {**single.arm.to_json(), "name": name}
    if manifest["trials"]:
        base = study.trial(manifest["trials"][0]["id"]).config()
        arm["reference"] = manifest["baseline"]
        arm["diff"] = difference(base, single.trial.config)
    manifest["arms"].append(arm)
    for factor, level in single.arm.levels.items():
        labels = manifest["factors"].setdefault(factor, [])
        if level not in labels:
            labels.append(level)
    return name


def _of_arm(config: dict[str, Any]) -> dict[str, Any]:
    """What the trials of one arm have in common: all but the seed and the peak learning rate."""
    rest = {k: v for k, v in config.items() if k not in PER_TRIAL}
    return {**rest, "optim": {**rest["optim"], "lr": None}}
