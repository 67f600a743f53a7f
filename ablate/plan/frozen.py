"""The plan of a study that was frozen before: read off its manifest and its trials, composed anew
from nothing, so that edited YAML changes nothing.
"""

from __future__ import annotations

from typing import Any

from ablate.config.fingerprint import fingerprint
from ablate.design import CROSSED
from ablate.errors import StudyError
from ablate.plan.canonical import difference
from ablate.plan.learning import cost_of, learning_of
from ablate.plan.noise import known_noise
from ablate.plan.speed import speeds_on_disk
from ablate.plan.study_plan import Plan, PlannedArm, PlannedTrial
from ablate.rundir import StudyDir
from ablate.rundir.names import CONFIG

__all__ = ["arm_seeds", "frozen_plan"]

SECTIONS = ("model", "data", "optim", "train", "cluster", "track")
"""Of a configuration that are read here and by whoever launches the plan."""


def frozen_plan(study: StudyDir) -> Plan:
    """What the study holds, as it was planned; noise, power and cost as they are known by now.

    Raises:
        StudyError: for a study that no sweep made.
    """
    manifest = study.manifest()
    if "base" not in manifest:
        raise StudyError(
            f"The trials of {study.name} were run one by one (`ablate train`), so there is no plan "
            "of them. Write a sweep, and plan and launch that."
        )
    configs = _arm_configs(study, manifest)
    arms = [_arm(arm, configs) for arm in manifest["arms"]]
    trials = [_trial(study, trial, configs[trial["arm"]]) for trial in manifest["trials"]]
    written = (manifest.get("sweep") or {}).get("written", {})
    decide, steps = manifest["decide"], manifest["budget"]["steps"]
    decide = {"margin": decide["smallest_effect"], "spending": None, **decide}
    runs_dir, seeds = str(study.path.parent), len(arm_seeds(manifest))
    own = {t.fingerprint for t in trials if t.arm == manifest["baseline"]}
    noise = known_noise(
        written.get("noise"), runs_dir, decide["metric"], {arms[0].fingerprint, *own}
    )
    crossed = len(manifest["factors"]) if manifest["design"] in CROSSED else None
    pilot = set(manifest.get("pilot") or [])
    return Plan(
        study=study.name,
        question=manifest["question"],
        design=manifest["design"],
        baseline=manifest["baseline"],
        base=manifest["base"],
        asked=manifest.get("sweep") or {},
        factors=manifest["factors"],
        decide=manifest["decide"],
        design_info=manifest.get("design_info"),
        match=manifest["match"],
        claim=manifest.get("claim"),
        runs_dir=runs_dir,
        steps=steps,
        seeds=seeds,
        rates=sorted({t.lr for t in trials if t.lr is not None}),
        arms=arms,
        trials=trials,
        pilot_seeds=list(dict.fromkeys(t.seed for t in trials if t.id in pilot)),
        noise=noise,
        learning=learning_of(arms, decide, seeds, noise, crossed),
        cost=cost_of(arms, trials, steps, speeds_on_disk(runs_dir), written.get("throughput")),
        notes=[],
    )


def arm_seeds(manifest: dict[str, Any]) -> list[int]:
    """The seeds that every arm has, in the order of the trials."""
    by_arm: dict[str, dict[int, None]] = {}
    for trial in manifest["trials"]:
        by_arm.setdefault(trial["arm"], {})[trial["seed"]] = None
    rows = list(by_arm.values())
    return [seed for seed in max(rows, key=len) if all(seed in row for row in rows)] if rows else []


def _arm_configs(study: StudyDir, manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    first: dict[str, str] = {}
    for trial in manifest["trials"]:
        first.setdefault(trial["arm"], trial["id"])
    configs = {arm: study.trial(id).config() for arm, id in first.items()}
    for arm, config in configs.items():
        if missing := [s for s in SECTIONS if not isinstance(config.get(s), dict)]:
            raise StudyError(
                f"{study.trial(first[arm]).path / CONFIG} is damaged: it has no section "
                f"{missing[0]}. Restore it, or delete it: "
                f"`{manifest.get('command') or 'ablate launch sweep=NAME'}` writes it anew."
            )
    return configs


def _arm(arm: dict[str, Any], configs: dict[str, dict[str, Any]]) -> PlannedArm:
    config, reference = configs[arm["name"]], arm["reference"]
    return PlannedArm(
        name=arm["name"],
        levels=arm["levels"],
        overrides=tuple(arm["overrides"]),
        reference=reference,
        config=config,
        diff=arm["diff"],
        change=difference(configs[reference], config) if reference else {},
        parameters=arm["parameters"],
        flops_per_token=arm["flops_per_token"],
        resized=arm["resized"],
        frozen=arm,
    )


def _trial(study: StudyDir, trial: dict[str, Any], example: dict[str, Any]) -> PlannedTrial:
    """Its configuration is the arm's with its own seed and rate; where it is not, it is read."""
    config = {**example, "seed": trial["seed"]}
    if trial["lr"] is not None:
        config["optim"] = {**example["optim"], "lr": trial["lr"]}
    if fingerprint(config) != trial["fingerprint"]:
        config = study.trial(trial["id"]).config()
    return PlannedTrial(
        id=trial["id"],
        arm=trial["arm"],
        seed=trial["seed"],
        lr=trial["lr"],
        config=config,
        fingerprint=trial["fingerprint"],
    )
