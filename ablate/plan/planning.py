"""Sweep to plan: composed, checked, matched, budgeted, numbered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.compose import Composer
from ablate.config.fingerprint import fingerprint, trial_id
from ablate.design import INFO, ArmSpec
from ablate.errors import ConfigError, PlanError
from ablate.plan.arms import (
    ComposedArm,
    Toggles,
    check_inert,
    compose_arm,
    merge_baseline,
    refuse_duplicates,
)
from ablate.plan.budget import tokens_per_step
from ablate.plan.canonical import difference
from ablate.plan.exclude import exclude
from ablate.plan.factors import read_factors
from ablate.plan.learning import cost_of, learning_of
from ablate.plan.lineage import Adopted, adopt
from ablate.plan.lineage import notes as lineage_notes
from ablate.plan.noise import noise_on_disk
from ablate.plan.power import Noise
from ablate.plan.sizing import costs, resize, set_steps, still_paired
from ablate.plan.speed import speeds_on_disk
from ablate.plan.study_plan import Plan, PlannedArm, PlannedTrial
from ablate.plan.sweep import SweepConfig, design_function

__all__ = ["plan_sweep", "plan_written", "whole_budget"]


def plan_sweep(overrides: Sequence[str], *, cwd: Path | None = None) -> Plan:
    """The plan of `sweep=NAME` with further overrides; reads earlier studies, writes nothing.

    Raises:
        ConfigError: for a field of the sweep, or of the baseline's configuration.
        PlanError: for what would not be an honest comparison, with the arm's name.
    """
    composer = Composer(cwd)
    name, base_overrides = _sweep_name(overrides)
    tree = composer.compose(whole_budget(overrides))
    written = tree.get("sweep")
    if not isinstance(written, dict):
        raise PlanError(
            f"sweep={name} has no `sweep:` section. Write at least its question and factors."
        )
    return plan_written(written, name, [f"sweep={name}"], base_overrides, composer)


def plan_written(
    written: Mapping[str, Any],
    name: str,
    first: Sequence[str],
    base_overrides: Sequence[str],
    composer: Composer,
) -> Plan:
    """The plan of a `sweep:` section, wherever it was written.

    Args:
        written: the section.
        name: of the study, unless its overrides name it.
        first: overrides that come before the sweep's own baseline.
        base_overrides: those that come after it, for every arm.
        composer: finds the user's options.
    """
    sweep = SweepConfig.from_mapping(written)
    runs_dir = composer.compose([*first, *base_overrides])["runs_dir"]
    adopted = adopt(sweep.baseline, runs_dir)
    base = [*first, *adopted.overrides, *base_overrides]
    arms = _arms(sweep, base, composer)
    if sweep.design == "grid":
        arms = merge_baseline(arms)
    steps = set_steps(sweep, arms, base_overrides)
    resized = resize(sweep, arms, lambda: speeds_on_disk(runs_dir))
    check_inert(arms)
    refuse_duplicates(arms)
    study = arms[0].config["study"] or name
    planned = _planned(arms, resized, study, sweep)
    trials = _trials(planned, sweep)
    asked = {"name": name, "written": dict(written), "overrides": list(base_overrides)}
    return _finish(sweep, study, asked, adopted, planned, trials, steps)


def _sweep_name(overrides: Sequence[str]) -> tuple[str, list[str]]:
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
        raise PlanError(
            "A plan needs a sweep: write sweep=NAME, a file of sweeps/ (for example sweep=hello)."
        )
    return name, rest


def whole_budget(overrides: Sequence[str]) -> list[str]:
    """A budget on the command line stands in place of the sweep's: tokens do not join its steps."""
    budget = [o for o in overrides if o.lstrip("+").startswith(("sweep.budget=", "sweep.budget."))]
    if not budget:
        return list(overrides)
    rest = [o for o in overrides if o not in budget]
    parts = [f"++{o.lstrip('+')}" if "sweep.budget." in o.partition("=")[0] else o for o in budget]
    return [*rest, "sweep.budget=null", *parts]


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
    taken = {"optim.lr": "sweep.lr"} if sweep.rates else {}
    if sweep.budget is not None:
        taken["train.steps"] = "sweep.budget"
    for spec in specs:
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


def _trials(arms: list[PlannedArm], sweep: SweepConfig) -> list[PlannedTrial]:
    """The pilot, then seed by seed, so that a study cut short has whole blocks."""
    cells = [(arms[0], seed) for seed in sweep.pilot_seeds]
    cells += [(arm, seed) for seed in sweep.seed_list for arm in arms]
    cells = list({(arm.name, seed): (arm, seed) for arm, seed in cells}.values())
    return [
        trial_of(arm.name, {**arm.config, "seed": seed}, rate, varied=len(sweep.rates) > 1)
        for arm, seed in cells
        for rate in sweep.rates or [None]
    ]


def trial_of(arm: str, config: dict[str, Any], rate: float | None, *, varied: bool) -> PlannedTrial:
    """A trial at this peak rate (None: the configuration's own); `varied`: of several rates."""
    if rate is not None:
        config = {**config, "optim": {**config["optim"], "lr": rate}}
    lr = rate if varied else None
    return PlannedTrial(
        id=trial_id(arm, config, lr=lr),
        arm=arm,
        seed=config["seed"],
        lr=lr,
        config=config,
        fingerprint=fingerprint(config),
    )


def _finish(
    sweep: SweepConfig,
    study: str,
    asked: dict[str, Any],
    adopted: Adopted,
    arms: list[PlannedArm],
    trials: list[PlannedTrial],
    steps: int,
) -> Plan:
    decide, seeds = sweep.decide.frozen(len(arms) - 1), len(sweep.seed_list)
    runs_dir = arms[0].config["runs_dir"]
    own = {trial.fingerprint for trial in trials if trial.arm == arms[0].name}
    if sweep.noise is None:
        noise = noise_on_disk(runs_dir, sweep.decide.metric, {arms[0].fingerprint, *own})
    else:
        noise = Noise(sd=sweep.noise, df=0, source="sweep.noise", kind="given")
    factorial = sweep.design in ("factorial", "fractional")
    return Plan(
        study=study,
        question=sweep.question.strip(),
        design=sweep.design,
        baseline=arms[0].name,
        base=[*adopted.overrides, *asked["overrides"]],
        asked=asked,
        factors={
            factor: list(dict.fromkeys(arm.levels[factor] for arm in arms))
            for factor in arms[0].levels
        },
        decide=decide,
        design_info=_info(sweep, adopted) or None,
        match=sweep.match,
        claim=sweep.claim,
        runs_dir=runs_dir,
        steps=steps,
        seeds=seeds,
        rates=sweep.rates,
        arms=arms,
        trials=trials,
        pilot_seeds=sweep.pilot_seeds if sweep.pilot else [],
        noise=noise,
        learning=learning_of(arms, decide, seeds, noise, len(sweep.factors) if factorial else None),
        cost=cost_of(arms, trials, steps, speeds_on_disk(runs_dir), sweep.throughput),
        notes=[
            *_notes(sweep, arms),
            *lineage_notes(adopted, arms[0].config, sweep.seed_list),
        ],
    )


def _notes(sweep: SweepConfig, arms: list[PlannedArm]) -> list[str]:
    notes = []
    if sweep.exclude and sweep.design in ("factorial", "fractional"):
        notes.append("sweep.exclude takes arms out, so the design is not orthogonal any more.")
    if len(sweep.seed_list) < 2:
        notes.append("One seed cannot support a verdict: every arm will be undecided.")
    base = arms[0]
    if sweep.match == "wallclock":
        notes.append(
            "Matched in time per token as predicted from measured speeds and FLOPs; the report "
            "shows what it came to."
        )
    if sweep.match == "none":
        for what, unit in (("parameters", "parameters"), ("flops_per_token", "FLOPs per token")):
            far = [a.name for a in arms if abs(getattr(a, what) / getattr(base, what) - 1) > 0.01]
            if far:
                notes.append(
                    f"More than 1 % from the baseline's {unit} (match: none): {_listed(far)}."
                )
    per_step = tokens_per_step(base.config)
    other = [a.name for a in arms if tokens_per_step(a.config) != per_step]
    if other:
        notes.append(
            f"Other tokens a step than the baseline, so not paired by batch: {_listed(other)}."
        )
    return notes


def _listed(names: list[str], most: int = 8) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")
