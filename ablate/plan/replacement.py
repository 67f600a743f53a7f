"""An arm of a frozen study planned anew, because its code or its YAML was edited: a revision.

The arm keeps its name and its place; its old trials leave the manifest's `trials` for `replaced`,
and stay on disk. Whoever replaces an arm that has results may have done so for what they were: then
the result is exploratory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ablate.config.typed import closest
from ablate.errors import PlanError, StudyError
from ablate.plan.canonical import difference
from ablate.plan.extension import Extension, plan_again, written_sweep
from ablate.plan.frozen import arm_seeds, frozen_plan
from ablate.plan.manifest import code_version
from ablate.plan.spending import look_of
from ablate.plan.trials import trial_of
from ablate.rundir import StudyDir

__all__ = ["replace_arms"]

RESULTS = ("done", "diverged")


def replace_arms(study: StudyDir, names: Sequence[str], *, cwd: Path | None = None) -> Extension:
    """These arms as they are composed today, with the seeds and rates that they had.

    Raises:
        StudyError: for an arm that is not there, is unchanged, or has a trial that runs; where an
            arm that was not named would come out differently too.
        PlanError: for the baseline, against which all others were judged.
    """
    plan, manifest = frozen_plan(study), study.manifest()
    written = written_sweep(study, manifest)
    frozen = {arm.name: arm for arm in plan.arms}
    for name in names:
        if name not in frozen:
            raise StudyError(f"The study {study.name} has no arm {name!r}. {closest(name, frozen)}")
        if name == plan.baseline:
            raise PlanError(
                f"{name} is the baseline of {study.name}: another baseline is another study "
                f"(study={study.name}-2)."
            )
    now = {a.name: a for a in plan_again(plan, manifest, written, cwd, names).arms}
    old = [trial for trial in plan.trials if trial.arm in names]
    for name in names:
        if not difference(frozen[name].config, now[name].config):
            raise StudyError(
                f"Arm {name} of {study.name} would come out as it was: there is nothing to "
                "replace. `ablate retry` runs its failed trials again."
            )
    states = {trial.id: study.trial(trial.id).live_state().status for trial in old}
    for id, status in states.items():
        if status == "running":
            raise StudyError(f"Trial {id} is running. Cancel it first, or wait for it.")
    trials = [
        trial_of(t.arm, {**now[t.arm].config, "seed": t.seed}, t.lr, varied=t.lr is not None)
        for t in old
    ]
    seen = sorted({t.arm for t in old if states[t.id] in RESULTS})
    history, seeds = manifest["history"], len(arm_seeds(manifest))
    look = look_of(manifest["decide"], seeds, history)
    reasons = [e["exploratory"] for e in history if e.get("exploratory")][:1]
    if seen:
        reasons.append(f"{', '.join(seen)} was replaced after its results were there")
    said, revision = " ".join(names), int(manifest.get("revision", 1)) + 1
    return Extension(
        study=study,
        revision=revision,
        arms=[now[name] for name in names],
        trials=trials,
        factors={factor: list(labels) for factor, labels in plan.factors.items()},
        design_info=plan.design_info,
        entry={
            "revision": revision,
            "time": time.time(),
            "what": f"{len(trials)} trials of {said} replaced: --replace {said}",
            "overrides": [],
            "code": code_version(),
            **look,
            "exploratory": "; ".join(reasons) or None,
        },
        written=written,
        replaced=list(names),
    )
