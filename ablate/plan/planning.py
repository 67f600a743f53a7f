"""Sweep to plan: composed, checked, matched, budgeted, numbered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ablate.config.compose import Composer
from ablate.config.fingerprint import fingerprint, trial_id
from ablate.design import ArmSpec
from ablate.errors import ConfigError, PlanError, show
from ablate.model.config import ModelConfig
from ablate.plan.arms import ComposedArm, Toggles, check_inert, compose_arm, merge_duplicates
from ablate.plan.budget import steps_of, tokens_per_step
from ablate.plan.canonical import difference, resolve, section
from ablate.plan.exclude import exclude
from ablate.plan.factors import read_factors
from ablate.plan.match import match
from ablate.plan.noise import noise_on_disk
from ablate.plan.power import Noise, detectable_effect, seeds_needed
from ablate.plan.study_plan import Plan, PlannedArm, PlannedTrial
from ablate.plan.sweep import SweepConfig, design_function

__all__ = ["costs", "plan_sweep"]

PRODUCTS = ("grid", "factorial")
"""Designs that list the baseline's level among the others."""


def costs(config: dict[str, Any]) -> tuple[int, int]:
    """(parameters, training FLOPs per token) of a canonical configuration, by formula."""
    from ablate.model import count

    model = ModelConfig(**config["model"])
    length = config["train"]["sequence_length"] or model.max_sequence_length
    return count.parameters(model), count.flops_per_token(model, length)


def plan_sweep(overrides: Sequence[str], *, cwd: Path | None = None) -> Plan:
    """The plan of `sweep=NAME` with further overrides; reads earlier studies, writes nothing.

    Raises:
        ConfigError: for a field of the sweep, or of the baseline's configuration.
        PlanError: for what would not be an honest comparison, with the arm's name.
    """
    composer = Composer(cwd)
    name, base_overrides = _sweep_name(overrides)
    tree = composer.compose(list(overrides))
    written = tree.get("sweep")
    if not isinstance(written, dict):
        raise PlanError(f"sweep={name} has no `sweep:` section. Write at least its question and factors.")
    sweep = SweepConfig.from_mapping(written)
    base = [f"sweep={name}", *sweep.baseline, *base_overrides]
    arms = _arms(sweep, base, composer)
    steps = _budget(sweep, arms, base_overrides)
    resized = _match(sweep, arms)
    check_inert(arms)
    arms = merge_duplicates(arms, merge=sweep.design in PRODUCTS)
    study = arms[0].config["study"] or name
    planned = _planned(arms, resized, study, sweep)
    trials = _trials(planned, sweep)
    return _finish(sweep, study, [*sweep.baseline, *base_overrides], planned, trials, steps)


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
        raise PlanError("A plan needs a sweep: write sweep=NAME, a file of sweeps/ (for example sweep=hello).")
    return name, rest


def _arms(sweep: SweepConfig, base: list[str], composer: Composer) -> list[ComposedArm]:
    factors = read_factors(sweep.factors)
    specs = exclude(design_function(sweep.design)(factors), sweep.exclude, factors)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"Two arms would be called {name}. Rename a factor or label its levels.")
    toggles = Toggles(composer)
    _refuse_bracket_clash(sweep, specs, toggles)
    ladder = sweep.design == "ladder"
    return [compose_arm(spec, base, composer, toggles, ladder=ladder) for spec in specs]


def _refuse_bracket_clash(sweep: SweepConfig, specs: list[ArmSpec], toggles: Toggles) -> None:
    taken = {"optim.lr": "sweep.lr"} if sweep.rates else {}
    if sweep.budget is not None:
        taken["train.steps"] = "sweep.budget"
    for spec in specs:
        for override in spec.overrides:
            for field in taken.keys() & toggles.sets(override).keys():
                raise PlanError(
                    f"Arm {spec.name}: {override} sets {field}, which {taken[field]} sets for every arm. "
                    f"Drop one of them."
                )


def _budget(sweep: SweepConfig, arms: list[ComposedArm], overrides: Sequence[str]) -> int:
    """Sets train.steps of every arm, and returns it."""
    base = arms[0].config
    explicit = any(o.partition("=")[0].lstrip("+") == "train.steps" for o in overrides)
    # Steps on the command line are the newer word: `sweep=hello train.steps=20` is a short hello.
    budget = None if explicit else sweep.budget
    steps = steps_of(budget, base, costs(base)[1])
    if budget is None:
        for arm in arms:
            if arm.config["train"]["steps"] != steps:
                raise PlanError(
                    f"Arm {arm.spec.name} trains for {arm.config['train']['steps']} steps and the baseline for "
                    f"{steps}. Unequal schedules cannot be compared; give one sweep.budget."
                )
    for arm in arms:
        per_step = tokens_per_step(arm.config)
        if per_step != tokens_per_step(base) and budget is not None and "steps" not in budget:
            raise PlanError(
                f"Arm {arm.spec.name} reads {per_step:,} tokens a step and the baseline "
                f"{tokens_per_step(base):,}, so equal steps are not an equal budget. Use sweep.budget.steps, or "
                "keep train.batch_size and train.sequence_length equal."
            )
        arm.config["train"]["steps"] = steps
    return steps


def _match(sweep: SweepConfig, arms: list[ComposedArm]) -> dict[str, dict[str, list[Any]]]:
    """Resizes the arms in place; arm name -> {dotted field: [from, to]}."""
    resized: dict[str, dict[str, list[Any]]] = {}
    if sweep.match == "none":
        return resized
    cost, what = _cost(sweep.match, arms[0].config)
    target = cost(ModelConfig(**arms[0].config["model"]))
    for arm in arms[1:]:
        changed = match(arm.spec.name, ModelConfig(**arm.config["model"]), target, cost, what)
        _refuse_undoing(sweep, arm, arms[0], changed)
        for field, (_, value) in changed.items():
            arm.config["model"][field] = value
        if changed:
            resized[arm.spec.name] = {f"model.{field}": pair for field, pair in changed.items()}
    return resized


def _cost(kind: str, config: dict[str, Any]) -> tuple[Callable[[ModelConfig], int], str]:
    from ablate.model import count

    if kind == "params":
        return count.parameters, "parameters"
    length = config["train"]["sequence_length"] or config["model"]["max_sequence_length"]
    return lambda model: count.flops_per_token(model, length), "FLOPs per token"


def _refuse_undoing(
    sweep: SweepConfig, arm: ComposedArm, baseline: ComposedArm, resized: dict[str, list[Any]]
) -> None:
    own = difference(baseline.config, arm.config)
    for field in resized:
        related = ("mlp_hidden_size", "mlp_ratio") if field == "mlp_hidden_size" else (field,)
        for name in related:
            if f"model.{name}" in own:
                raise PlanError(
                    f"Arm {arm.spec.name} sets model.{name}={show(own[f'model.{name}'][1])}, and "
                    f"sweep.match={sweep.match} would resize {field} again ({resized[field][0]} to "
                    f"{resized[field][1]}). Use sweep.match=none for a factor that is a size."
                )


def _planned(
    arms: list[ComposedArm], resized: dict[str, dict[str, list[Any]]], study: str, sweep: SweepConfig
) -> list[PlannedArm]:
    configs = {arm.spec.name: arm.config for arm in arms}
    base = arms[0].config
    planned = []
    for arm in arms:
        config = {**arm.config, "study": study, "seed": sweep.seed_list[0]}
        parameters, flops = costs(config)
        reference = arm.spec.reference
        fields = resized.get(arm.spec.name, {})
        planned.append(
            PlannedArm(
                name=arm.spec.name,
                levels=arm.spec.levels,
                overrides=arm.spec.overrides,
                reference=reference,
                config=config,
                diff=difference(base, config),
                change=difference(configs[reference], config) if reference else {},
                parameters=parameters,
                flops_per_token=flops,
                resized=fields,
                replaces=arm.replaces,
                paired=_paired(fields),
            )
        )
    return planned


def _paired(resized: dict[str, list[Any]]) -> str:
    """What a resized arm still shares with the others, in words."""
    if not resized:
        return ""
    lost = []
    if "model.n_layers" in resized:
        before, after = resized["model.n_layers"]
        lost.append(f"layers {min(before, after) + 1} to {max(before, after)}")
    if "model.mlp_hidden_size" in resized:
        lost.append("the MLP matrices")
    return f"data order and all other tensors stay paired, not {' and '.join(lost)}"


def _trials(arms: list[PlannedArm], sweep: SweepConfig) -> list[PlannedTrial]:
    """Seed by seed, so that a study cut short has whole blocks."""
    rates = sweep.rates
    trials = []
    for seed in sweep.seed_list:
        for arm in arms:
            for rate in rates or [None]:
                config = {**arm.config, "seed": seed}
                if rate is not None:
                    config["optim"] = {**config["optim"], "lr": rate}
                lr = rate if len(rates) > 1 else None
                trials.append(
                    PlannedTrial(
                        id=trial_id(arm.name, config, lr=lr),
                        arm=arm.name,
                        seed=seed,
                        lr=lr,
                        config=config,
                        fingerprint=fingerprint(config),
                    )
                )
    return trials


def _finish(
    sweep: SweepConfig,
    study: str,
    base: list[str],
    arms: list[PlannedArm],
    trials: list[PlannedTrial],
    steps: int,
) -> Plan:
    decide = section(sweep.decide)
    runs_dir = arms[0].config["runs_dir"]
    own = {trial.fingerprint for trial in trials if trial.arm == arms[0].name}
    noise = noise_on_disk(runs_dir, sweep.decide.metric, own)
    effect, reason, needed = _detectable(sweep, noise, len(arms))
    return Plan(
        study=study,
        question=sweep.question.strip(),
        design=sweep.design,
        baseline=arms[0].name,
        base=base,
        factors={
            factor: list(dict.fromkeys(arm.levels[factor] for arm in arms)) for factor in arms[0].levels
        },
        decide=decide,
        match=sweep.match,
        claim=sweep.claim,
        runs_dir=runs_dir,
        steps=steps,
        arms=arms,
        trials=trials,
        noise=noise,
        smallest_detectable_effect=effect,
        undetectable=reason,
        seeds_needed=needed,
        notes=_notes(sweep, arms),
    )


def _detectable(
    sweep: SweepConfig, noise: Noise, arms: int
) -> tuple[float | None, str | None, int | None]:
    """(smallest detectable effect, why it is unknown, seeds for the effect of interest)."""
    if noise.sd is None:
        return None, f"the noise is unknown: {noise.source}", None
    rule = sweep.decide
    given = {"arms": arms, "alpha": rule.alpha, "comparisons": arms - 1}
    needed = seeds_needed(rule.smallest_effect, noise.sd, **given)
    effect = detectable_effect(noise.sd, seeds=len(sweep.seed_list), **given)
    reason = None if effect is not None else "one seed leaves no residual to judge by"
    return effect, reason, needed


def _notes(sweep: SweepConfig, arms: list[PlannedArm]) -> list[str]:
    notes = []
    if len(sweep.seed_list) < 2:
        notes.append("One seed cannot support a verdict: every arm will be undecided.")
    base = arms[0]
    if sweep.match == "none":
        for what, unit in (("parameters", "parameters"), ("flops_per_token", "FLOPs per token")):
            far = [a.name for a in arms if abs(getattr(a, what) / getattr(base, what) - 1) > 0.01]
            if far:
                notes.append(f"More than 1 % from the baseline's {unit} (match: none): {', '.join(far)}.")
    per_step = tokens_per_step(base.config)
    other = [a.name for a in arms if tokens_per_step(a.config) != per_step]
    if other:
        notes.append(f"Other tokens a step than the baseline, so not paired by batch: {', '.join(other)}.")
    return notes


def resolve_base(composer: Composer, overrides: Sequence[str]) -> dict[str, Any]:
    return resolve(composer.compose(list(overrides)))
