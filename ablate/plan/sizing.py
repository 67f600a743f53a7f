"""Every arm gets the same number of steps, and under `match` the baseline's size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ablate.errors import PlanError, show
from ablate.model import count
from ablate.model.config import ModelConfig
from ablate.plan.arms import ComposedArm
from ablate.plan.budget import given_steps, steps_of, tokens_per_step
from ablate.plan.canonical import difference
from ablate.plan.match import match
from ablate.plan.speed import Speeds, speed_key
from ablate.plan.sweep import SweepConfig

__all__ = ["costs", "resize", "set_steps", "still_paired"]


def costs(config: dict[str, Any]) -> tuple[int, int]:
    """(parameters, training FLOPs per token) of a canonical configuration, by formula."""
    model = ModelConfig(**config["model"])
    length = config["train"]["sequence_length"] or model.max_sequence_length
    return count.parameters(model), count.flops_per_token(model, length)


def set_steps(sweep: SweepConfig, arms: list[ComposedArm], overrides: Sequence[str]) -> int:
    """Sets train.steps of every arm, and returns it."""
    base = arms[0].config
    # Steps on the command line are the newer word: `sweep=hello train.steps=20` is a short hello.
    budget = None if given_steps(overrides) else sweep.budget
    steps = steps_of(budget, base, costs(base)[1])
    if budget is None:
        for arm in arms:
            if arm.config["train"]["steps"] != steps:
                raise PlanError(
                    f"Arm {arm.spec.name} trains for {arm.config['train']['steps']} steps and "
                    f"the baseline for {steps}. Unequal schedules cannot be compared; give one "
                    "sweep.budget."
                )
    for arm in arms:
        per_step = tokens_per_step(arm.config)
        if per_step != tokens_per_step(base) and budget is not None and "steps" not in budget:
            raise PlanError(
                f"Arm {arm.spec.name} reads {per_step:,} tokens a step and the baseline "
                f"{tokens_per_step(base):,}, so equal steps are not an equal budget. Use "
                "sweep.budget.steps, or keep train.batch_size and train.sequence_length equal."
            )
        arm.config["train"]["steps"] = steps
    return steps


def resize(
    sweep: SweepConfig, arms: list[ComposedArm], speeds: Speeds
) -> dict[str, dict[str, list[Any]]]:
    """Resizes the arms in place; arm name -> {dotted field: [from, to]}.

    Args:
        sweep: says what is matched.
        arms: the baseline first, every arm after its reference.
        speeds: measured here; `match: wallclock` reads them.
    """
    resized: dict[str, dict[str, list[Any]]] = {}
    if sweep.match == "none":
        return resized
    done = {arms[0].spec.name: arms[0]}
    for arm in arms[1:]:
        reference = ModelConfig(**done[str(arm.spec.reference)].config["model"])
        model = ModelConfig(**arm.config["model"])
        if sweep.match == "wallclock":
            cost, target = _time(arms[0], arm, model, speeds)
            # Another arm's shape says nothing about the speed of this one.
            reference, what = None, "nanoseconds per token"
        else:
            cost, what = _cost(sweep.match, arms[0].config)
            target = cost(ModelConfig(**arms[0].config["model"]))
        changed = match(arm.spec.name, model, target, cost, what, prefer=reference)
        done[arm.spec.name] = arm
        _refuse_undoing(sweep, arm, arms[0], changed)
        for field, (_, value) in changed.items():
            arm.config["model"][field] = value
        if changed:
            resized[arm.spec.name] = {f"model.{field}": pair for field, pair in changed.items()}
    return resized


def _cost(kind: str, config: dict[str, Any]) -> tuple[Callable[[ModelConfig], int], str]:
    if kind == "params":
        return count.parameters, "parameters"
    length = config["train"]["sequence_length"] or config["model"]["max_sequence_length"]
    return lambda model: count.flops_per_token(model, length), "FLOPs per token"


def _time(
    baseline: ComposedArm, arm: ComposedArm, model: ModelConfig, speeds: Speeds
) -> tuple[Callable[[ModelConfig], int], int]:
    """(nanoseconds per token of a resized arm, those of the baseline), measured side by side.

    What an arm takes as it was measured is scaled by its FLOPs: a prediction, good for the small
    changes that matching makes.
    """
    pair = speeds.together(speed_key(baseline.config), speed_key(arm.config))
    if pair is None:
        raise PlanError(
            f"sweep.match=wallclock needs the measured speeds of the baseline and of arm "
            f"{arm.spec.name} as they are without matching, from one finished study here, and "
            "there is none. Measure them: launch the same sweep with sweep.match=none "
            "sweep.seeds=1 sweep.budget.steps=50 under another study=NAME; or use match=flops."
        )
    length = arm.config["train"]["sequence_length"] or model.max_sequence_length
    own = 1e9 / pair[1].tokens_per_second / count.flops_per_token(model, length)
    return (
        lambda resized: round(own * count.flops_per_token(resized, length)),
        round(1e9 / pair[0].tokens_per_second),
    )


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


def still_paired(change: dict[str, list[Any]]) -> str:
    """What a resized arm still shares with its reference, in words."""
    lost = []
    if "model.n_layers" in change:
        before, after = change["model.n_layers"]
        lost.append(f"layers {min(before, after) + 1} to {max(before, after)}")
    if "model.mlp_hidden_size" in change:
        lost.append("the MLP matrices")
    return f"all but {' and '.join(lost)}" if lost else "everything that both have"
