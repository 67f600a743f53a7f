"""Sweep to plan: composed, checked, matched, budgeted, numbered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.compose import Composer
from ablate.config.sweep_file import sweeps_by_name
from ablate.config.typed import closest
from ablate.design import CROSSED, INFO, ArmSpec
from ablate.errors import ConfigError, PlanError
from ablate.plan.arms import (
    ComposedArm,
    Toggles,
    check_inert,
    compose_arm,
    merge_baseline,
    refuse_duplicates,
)
from ablate.plan.budget import overruled, sets_budget, whole_budget
from ablate.plan.canonical import difference
from ablate.plan.claim import freeze_claims, read_claims
from ablate.plan.exclude import exclude
from ablate.plan.factors import read_factors
from ablate.plan.fitting import refuse_too_large
from ablate.plan.kernel_choice import check_kernels
from ablate.plan.learning import cost_of, learning_of
from ablate.plan.lineage import Adopted, adopt
from ablate.plan.lineage import notes as lineage_notes
from ablate.plan.noise import known_noise
from ablate.plan.notes import notes_of
from ablate.plan.sizing import costs, resize, set_steps, still_paired
from ablate.plan.speed import Speeds, speeds_on_disk
from ablate.plan.study_plan import Plan, PlannedArm
from ablate.plan.sweep import SweepConfig, design_function
from ablate.plan.trials import trials_of
from ablate.plan.vocabulary import check_vocabularies
from ablate.plan.without_effect import refuse_common, refuse_repeated_groups, without_effect

__all__ = ["plan_sweep", "plan_written", "study_of_sweep", "sweep_section"]


def plan_sweep(overrides: Sequence[str], *, cwd: Path | None = None) -> Plan:
    """The plan of `sweep=NAME` with further overrides; reads earlier studies, writes nothing.

    Raises:
        ConfigError: for a field of the sweep, or of the baseline's configuration.
        PlanError: for what would not be an honest comparison, with the arm's name.
    """
    composer = Composer(cwd)
    overrides = sweeps_by_name(overrides, composer.cwd)
    name, base_overrides = _sweep_name(overrides, composer)
    written, notes = sweep_section(overrides, composer)
    if not isinstance(written, dict):
        raise PlanError(
            f"sweep={name} has no `sweep:` section. Write at least its question and factors."
        )
    refuse_repeated_groups(base_overrides, composer)
    first = [f"sweep={name}"]
    plan = plan_written(written, name, first, base_overrides, composer, notes)
    if base_overrides:
        refuse_common(
            without_effect(
                arm.config, [*first, *plan.base, *arm.overrides], composer, base_overrides
            )
            for arm in plan.arms
        )
    return plan


def sweep_section(overrides: Sequence[str], composer: Composer) -> tuple[Any, list[str]]:
    """The `sweep:` section with these overrides, and what they do to it that is easily missed."""
    composed = composer.compose(whole_budget(overrides)).get("sweep")
    others = [o for o in overrides if not sets_budget(o)]
    if len(others) == len(overrides) or not isinstance(composed, dict):
        return composed, []
    own = (composer.compose(others).get("sweep") or {}).get("budget")
    return composed, overruled(own, composed.get("budget"))


def plan_written(
    written: Mapping[str, Any],
    name: str,
    first: Sequence[str],
    base_overrides: Sequence[str],
    composer: Composer,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan of a `sweep:` section, wherever it was written.

    Args:
        written: the section.
        name: of the sweep; and of the study, unless its overrides name it, which is one folder.
        first: overrides that come before the sweep's own baseline.
        base_overrides: those that come after it, for every arm.
        composer: finds the user's options.
        notes: what there is to know of the section already.
    """
    sweep = SweepConfig.from_mapping(written)
    runs_dir = composer.compose([*first, *base_overrides])["runs_dir"]
    adopted = adopt(sweep.baseline, runs_dir)
    base = [*first, *adopted.overrides, *base_overrides]
    arms = _arms(sweep, base, composer)
    if sweep.design == "grid":
        arms = merge_baseline(arms)
    steps = set_steps(sweep, arms, base_overrides)
    speeds = speeds_on_disk(arms[0].config["runs_dir"])
    resized = resize(sweep, arms, speeds)
    check_inert(arms)
    refuse_duplicates(arms)
    study = arms[0].config["study"] or study_of_sweep(name)
    planned = _planned(arms, resized, study, sweep)
    check_vocabularies(planned)
    check_kernels(planned)
    refuse_too_large(planned)
    asked = {"name": name, "written": dict(written), "overrides": list(base_overrides)}
    plan = _finish(sweep, study, asked, adopted, planned, speeds, steps)
    return dataclasses.replace(plan, notes=[*notes, *plan.notes])


def study_of_sweep(name: str) -> str:
    """What the study of a sweep is called unless it is named: `stability-qk_norm` of
    sweep=stability/qk_norm, for a study is one folder.
    """
    return name.replace("/", "-")


def _sweep_name(overrides: Sequence[str], composer: Composer) -> tuple[str, list[str]]:
    """The sweep's name, and the overrides that concern the trials."""
    name, rest = None, []
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        if key == "sweep":
            name = value.strip()
        elif key == "seed":
            reason = "a sweep has its own seeds"
            raise ConfigError("seed", value, reason, f"Write sweep.seeds=[{value}]")
        elif not key.startswith("sweep."):
            rest.append(override)
    if not name or name == "null":
        composer.compose(rest)  # where the word was mistyped (sweeep=hello), that is said
        raise PlanError(
            "A plan needs a sweep: write sweep=NAME, a file of sweeps/ (for example sweep=hello)."
        )
    return name, rest


def _arms(sweep: SweepConfig, base: list[str], composer: Composer) -> list[ComposedArm]:
    factors = read_factors(sweep.factors)
    specs = design_function(sweep.design)(factors, **sweep.design_options)
    if sweep.exclude and len(_info(sweep).get("orders", [])) > 1:
        raise PlanError(
            "sweep.exclude takes arms out of orders that pass through them, and a step without "
            "both its ends has no effect. Give the orders that are legal as ladders of their own."
        )
    specs = exclude(specs, sweep.exclude, factors)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(
                f"Two arms would be called {name}. Rename a factor or label its levels."
            )
    toggles = Toggles(composer)
    _refuse_bracket_clash(sweep, specs)
    # In the given order a later rung may take an earlier one's field; in several there is no later.
    ladder = sweep.design == "ladder" and sweep.orders in (None, "given", ["given"])
    return [compose_arm(spec, base, composer, toggles, ladder=ladder) for spec in specs]


def _info(sweep: SweepConfig, adopted: Adopted | None = None) -> dict[str, Any]:
    """What the manifest holds of the design besides its arms."""
    describe, info = INFO.get(sweep.design), {}
    if describe:
        info = describe(read_factors(sweep.factors), **sweep.design_options)
    if adopted and (adopted.lineage or sweep.design == "sequential"):
        info = {"kind": sweep.design, **info, "lineage": adopted.lineage}
    return info


def _refuse_bracket_clash(sweep: SweepConfig, specs: list[ArmSpec]) -> None:
    names = [spec.name for spec in specs]
    for arm in sweep.rated_arms:
        if arm not in names:
            reason = f"there is no arm of this name (arms: {', '.join(names)})"
            raise ConfigError(
                f"sweep.lr.{arm}", sweep.rates_of(arm), reason, closest(arm, names, listed=True)
            )
    for spec in specs:
        taken = {"optim.lr": "sweep.lr"} if sweep.rates_of(spec.name) else {}
        if sweep.budget is not None:
            taken["train.steps"] = "sweep.budget"
        for override in spec.overrides:
            # A group like optim=lion brings a rate of its own, which the bracket replaces as it
            # does every other.
            for field in taken.keys() & {override.partition("=")[0].lstrip("+")}:
                raise PlanError(
                    f"Arm {spec.name}: {override} sets {field}, which {taken[field]} sets for "
                    "every arm. Drop one of them."
                )


def _planned(
    arms: list[ComposedArm],
    resized: dict[str, dict[str, list[Any]]],
    study: str,
    sweep: SweepConfig,
) -> list[PlannedArm]:
    configs = {arm.spec.name: arm.config for arm in arms}
    base = arms[0].config
    planned = []
    for arm in arms:
        config = {**arm.config, "study": study, "seed": sweep.seed_list[0]}
        parameters, flops = costs(config)
        reference = arm.spec.reference
        fields = resized.get(arm.spec.name, {})
        change = difference(configs[reference], config) if reference else {}
        matched = {name for other in resized.values() for name in other}
        planned.append(
            PlannedArm(
                name=arm.spec.name,
                levels=arm.spec.levels,
                overrides=arm.spec.overrides,
                reference=reference,
                config=config,
                diff=difference(base, config),
                change=change,
                parameters=parameters,
                flops_per_token=flops,
                resized=fields,
                replaces=arm.replaces,
                paired=still_paired(change) if fields or matched & change.keys() else "",
            )
        )
    return planned


def _finish(
    sweep: SweepConfig,
    study: str,
    asked: dict[str, Any],
    adopted: Adopted,
    arms: list[PlannedArm],
    speeds: Speeds,
    steps: int,
) -> Plan:
    trials = trials_of(arms, sweep)
    decide, seeds = sweep.decide.frozen(len(arms) - 1), len(sweep.seed_list)
    runs_dir = arms[0].config["runs_dir"]
    own = {trial.fingerprint for trial in trials if trial.arm == arms[0].name}
    noise = known_noise(sweep.noise, runs_dir, sweep.decide.metric, {arms[0].fingerprint, *own})
    crossed = len(sweep.factors) if sweep.design in CROSSED else None
    base = [*adopted.overrides, *asked["overrides"]]
    return Plan(
        study=study,
        question=sweep.question.strip(),
        design=sweep.design,
        baseline=arms[0].name,
        base=base,
        asked=asked,
        factors={
            factor: list(dict.fromkeys(arm.levels[factor] for arm in arms))
            for factor in arms[0].levels
        },
        decide=decide,
        design_info=_info(sweep, adopted) or None,
        match=sweep.match,
        claim=freeze_claims(read_claims(sweep.claim), sweep.decide, arms, base, sweep.rates),
        runs_dir=runs_dir,
        steps=steps,
        seeds=seeds,
        rates=sweep.rates,
        arms=arms,
        trials=trials,
        pilot_seeds=sweep.pilot_seeds if sweep.pilot else [],
        noise=noise,
        learning=learning_of(arms, decide, seeds, noise, crossed),
        cost=cost_of(arms, trials, steps, speeds, sweep.throughput),
        notes=[
            *notes_of(sweep, arms, asked["overrides"]),
            *lineage_notes(adopted, arms[0].config, sweep.seed_list),
        ],
    )
