"""More seeds or arms for a study that is frozen: a revision of its manifest, never an edit.

Old trials keep their place and their configuration, the decision rule stays as it is, and the new
entry of the history says which look at the data this is, at which level it is judged, and why the
result is exploratory if it is. More seeds are the frozen arms with other seeds. More arms are
planned from the frozen sweep; then every old arm must come out as it was, or nothing is done.
"""

from __future__ import annotations

import copy
import dataclasses
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.config.compose import Composer
from ablate.config.overrides import parse_override
from ablate.config.tree import apply
from ablate.design import BASELINE
from ablate.errors import ConfigError, PlanError, StudyError, show
from ablate.plan.canonical import difference
from ablate.plan.frozen import arm_seeds, frozen_plan
from ablate.plan.manifest import code_version
from ablate.plan.planning import plan_written
from ablate.plan.spending import look_of
from ablate.plan.study_plan import Plan, PlannedArm, PlannedTrial
from ablate.plan.sweep import SweepConfig
from ablate.plan.trials import trial_of
from ablate.rundir import StudyDir

__all__ = ["Extension", "extend", "extended", "plan_again", "written_sweep"]

FROZEN = {
    "decide": "the decision rule was written before the runs, and stands (`ablate report "
    "--metric` looks at another metric, marked exploratory)",
    "question": "the question is frozen",
    "baseline": "another baseline is another study",
    "design": "another design is another study",
    "match": "it would resize the arms that ran",
    "budget": "unequal schedules cannot be compared",
    "pilot": "a pilot comes first or not at all",
}
GROWING = ("seeds", "factors", "lr", "orders", "arms", "exclude", "noise", "throughput")


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What is added to a study, before it is written."""

    study: StudyDir
    revision: int
    """The one that it leads to."""
    arms: list[PlannedArm]
    trials: list[PlannedTrial]
    factors: dict[str, list[str]]
    design_info: dict[str, Any] | None
    entry: dict[str, Any]
    """Of the manifest's history."""
    written: dict[str, Any]
    """The sweep as it is now."""
    replaced: list[str] = field(default_factory=list)
    """Arms of the study whose place these arms and trials take."""

    @property
    def empty(self) -> bool:
        return not self.trials


def extend(study: StudyDir, overrides: Sequence[str], *, cwd: Path | None = None) -> Extension:
    """The arms and trials that the sweep with these overrides has, and the study has not.

    Raises:
        ConfigError: for what is frozen, or for seeds that would be taken away.
        StudyError: for a study that no sweep made, or whose arms would come out differently now.
    """
    plan, manifest = frozen_plan(study), study.manifest()
    sweep, written = _sweep(written_sweep(study, manifest), overrides)
    old_seeds, seeds = arm_seeds(manifest), sweep.seed_list
    missing = [seed for seed in old_seeds if seed not in seeds]
    if missing:
        reason = f"leaves out {', '.join(map(str, missing))}, which the study has run"
        raise ConfigError("sweep.seeds", show(seeds), reason, "A study only grows")
    # A new order of the seeds would only shuffle; those that ran come first.
    new_seeds = [seed for seed in seeds if seed not in old_seeds]
    changed = {o.partition("=")[0].lstrip("+").split(".")[1] for o in overrides}
    if changed <= {"seeds"}:
        arms, trials, info = [], _more_seeds(plan, new_seeds), plan.design_info
    else:
        larger = plan_again(plan, manifest, written, cwd)
        had = {arm.name for arm in plan.arms}
        arms = [arm for arm in larger.arms if arm.name not in had]
        trials, info = larger.trials, larger.design_info
    known = {trial.fingerprint for trial in plan.trials}
    trials = [trial for trial in trials if trial.fingerprint not in known]
    factors = {name: list(labels) for name, labels in plan.factors.items()}
    for arm in arms:
        for factor, label in arm.levels.items():
            # Of a new factor the old arms have the baseline's level.
            labels = factors.setdefault(factor, [BASELINE])
            labels += [] if label in labels else [label]
    return Extension(
        study=study,
        revision=int(manifest.get("revision", 1)) + 1,
        arms=arms,
        trials=trials,
        factors=factors,
        design_info=info,
        entry=_entry(manifest, overrides, arms, trials, (len(old_seeds), len(new_seeds))),
        written=written,
    )


def written_sweep(study: StudyDir, manifest: dict[str, Any]) -> dict[str, Any]:
    """The sweep as it was launched. Raises StudyError where an older version did not keep it."""
    if "written" not in (manifest.get("sweep") or {}):
        raise StudyError(
            f"The study {study.name} was frozen by an older ablate, which did not keep its sweep. "
            f"Launch the larger sweep as another study: study={study.name}-2."
        )
    return manifest["sweep"]["written"]


def extended(manifest: dict[str, Any], extension: Extension) -> dict[str, Any]:
    """The next revision of the manifest."""
    levels = dict.fromkeys(extension.factors, BASELINE)
    names = set(extension.replaced)
    kept: list[dict[str, Any]] = manifest["trials"]
    more: dict[str, Any] = {}
    again = {arm.name: arm.to_json() for arm in extension.arms if arm.name in names}
    arms: list[dict[str, Any]] = [again.get(a["name"]) or a for a in manifest["arms"]]
    arms = [{**arm, "levels": {**levels, **arm["levels"]}} for arm in arms]
    if names:
        gone = [{**t, "revision": extension.revision} for t in kept if t["arm"] in names]
        kept = [t for t in kept if t["arm"] not in names]
        back = {trial.id for trial in extension.trials}
        gone = [t for t in [*manifest.get("replaced", []), *gone] if t["id"] not in back]
        more = {"replaced": gone}
    return {
        **manifest,
        **more,
        "revision": extension.revision,
        "factors": extension.factors,
        "design_info": extension.design_info,
        "sweep": {**manifest["sweep"], "written": extension.written},
        "arms": [*arms, *(arm.to_json() for arm in extension.arms if arm.name not in names)],
        "trials": [*kept, *(trial.to_json() for trial in extension.trials)],
        "history": [*manifest["history"], extension.entry],
    }


def _sweep(frozen: dict[str, Any], overrides: Sequence[str]) -> tuple[SweepConfig, dict[str, Any]]:
    """The frozen sweep with the overrides; they concern what may grow."""
    tree = {"sweep": copy.deepcopy(frozen)}
    for line in overrides:
        override = parse_override(line)
        parts = override.key.split(".")
        if parts[0] != "sweep" or len(parts) < 2:
            reason = "an extension adds seeds or arms, and nothing else changes"
            raise ConfigError(override.key, override.value, reason, "Write sweep.seeds=6")
        if parts[1] in FROZEN:
            raise ConfigError(override.key, override.value, FROZEN[parts[1]])
        if parts[1] not in GROWING:
            reason = "cannot be extended"
            remedy = "What can: " + ", ".join(f"sweep.{name}" for name in GROWING)
            raise ConfigError(override.key, override.value, reason, remedy)
        apply(tree, parse_override(f"++{line.lstrip('+')}"))
    written = tree["sweep"]
    return SweepConfig.from_mapping(_without_looks(written)), written


def _without_looks(written: dict[str, Any]) -> dict[str, Any]:
    """Whether the new seeds are a declared look is said, not refused."""
    return {**written, "decide": {**(written.get("decide") or {}), "spending": None}}


def _more_seeds(plan: Plan, seeds: Sequence[int]) -> list[PlannedTrial]:
    """Every arm, at every rate that it has, with these seeds."""
    rates: dict[str, dict[float | None, None]] = {}
    for trial in plan.trials:
        rates.setdefault(trial.arm, {})[trial.lr] = None
    return [
        trial_of(arm.name, {**arm.config, "seed": seed}, rate, varied=rate is not None)
        for seed in seeds
        for arm in plan.arms
        for rate in rates[arm.name]
    ]


def plan_again(
    plan: Plan,
    manifest: dict[str, Any],
    written: dict[str, Any],
    cwd: Path | None,
    replaced: Collection[str] = (),
) -> Plan:
    """The plan of the frozen sweep as it is composed today, for this study.

    Args:
        plan: what is frozen.
        manifest: of the study.
        written: the sweep.
        cwd: where the user's own conf/ is looked for.
        replaced: arms that may come out differently.

    Raises:
        PlanError: where it is no sound plan.
        StudyError: where another arm would come out differently, or not at all.
    """
    name, overrides = manifest["sweep"]["name"], manifest["sweep"]["overrides"]
    loose = _without_looks(written)
    try:
        larger = plan_written(loose, name, [f"sweep={name}"], overrides, Composer(cwd))
    except PlanError as error:
        raise PlanError(f"The extended sweep is no sound plan. {error}") from None
    # By the first trial of each arm, as the frozen plan has it: at the rate that the sweep sets.
    now: dict[str, dict[str, Any]] = {}
    for trial in larger.trials:
        now.setdefault(trial.arm, trial.config)
    varied = {trial.arm for trial in plan.trials if trial.lr is not None}
    for arm in plan.arms:
        if arm.name not in now:
            raise StudyError(
                f"The extended sweep has no arm {arm.name}, which {plan.study} has run. A study "
                "only grows: keep its factors and levels, and add to them."
            )
        changed = difference(arm.config, now[arm.name])
        if arm.name in varied:
            changed.pop("optim.lr", None)
        if changed and arm.name not in replaced:
            said = ", ".join(f"{f} {show(a)} to {show(b)}" for f, (a, b) in changed.items())
            raise StudyError(
                f"Arm {arm.name} of {plan.study} would come out differently today ({said}): the "
                "configuration has been edited since the launch. Undo that, replace the arm "
                f"(`ablate extend {plan.study} --replace {arm.name}`), or launch the larger sweep "
                f"as another study (study={plan.study}-2)."
            )
    here = {"study": plan.study}
    return dataclasses.replace(
        larger,
        arms=[dataclasses.replace(a, config={**a.config, **here}) for a in larger.arms],
        trials=[dataclasses.replace(t, config={**t.config, **here}) for t in larger.trials],
    )


def _entry(
    manifest: dict[str, Any],
    overrides: Sequence[str],
    arms: Sequence[PlannedArm],
    trials: Sequence[PlannedTrial],
    seeds: tuple[int, int],
) -> dict[str, Any]:
    """Args: `seeds` of each arm so far, and how many more."""
    history = manifest["history"]
    look = look_of(manifest["decide"], sum(seeds), history)
    earlier = next((e["exploratory"] for e in history if e.get("exploratory")), None)
    if not seeds[1]:
        look["exploratory"] = earlier
    if trials and (arms or not seeds[1]) and not earlier:
        names = ", ".join(arm.name for arm in arms) or "more learning rates"
        grown = f"the family of comparisons grew after the launch ({names})"
        look["exploratory"] = "; ".join(r for r in (look["exploratory"], grown) if r)
    parts = [f"{len(trials)} trials added"]
    parts += [f"{len(arms)} new arms"] if arms else []
    return {
        "revision": int(manifest.get("revision", 1)) + 1,
        "time": time.time(),
        "what": f"{', '.join(parts)}: {shlex.join(overrides)}",
        "overrides": list(overrides),
        "code": code_version(),
        **look,
    }
