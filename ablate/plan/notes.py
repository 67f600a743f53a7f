"""What whoever reads a plan has to know besides its figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.config.schema.data import held_out
from ablate.design import CROSSED
from ablate.design.ladder import FEWEST_ORDERS, too_few_orders
from ablate.model.config import ModelConfig
from ablate.model.widths import is_uniform, resolved
from ablate.plan.budget import budget_text, given_steps, tokens_per_step
from ablate.plan.factors import read_factors
from ablate.plan.fitting import gib
from ablate.plan.study_plan import PlannedArm
from ablate.plan.sweep import SweepConfig

__all__ = ["notes_of"]


def notes_of(sweep: SweepConfig, arms: Sequence[PlannedArm], overrides: Sequence[str]) -> list[str]:
    """Args: `overrides` are those of the command line, which stand above the sweep."""
    notes = []
    if sweep.budget and (steps := given_steps(overrides)):
        notes.append(
            f"{steps} stands in place of the sweep's budget ({budget_text(sweep.budget)})."
        )
    if sweep.exclude and sweep.design in CROSSED:
        notes.append("sweep.exclude takes arms out, so the design is not orthogonal any more.")
    if len(sweep.seed_list) < 2:
        notes.append("One seed cannot support a verdict: every arm will be undecided.")
    if sweep.design == "ladder" and sweep.orders is not None:
        few = too_few_orders(read_factors(sweep.factors), sweep.orders)
        if few:
            notes.append(
                f"orders: {few} are too few to say how much a step's share depends on the order: "
                "the report will show the shares without intervals. "
                f"orders: {FEWEST_ORDERS} gives intervals, orders: given asks about this order "
                "alone."
            )
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
    notes += [text for arm in arms if (text := _widths(arm))]
    notes += _whole_gradients(arms)
    notes += _other_texts(arms, sweep.decide.metric)
    per_step = tokens_per_step(base.config)
    other = [a.name for a in arms if tokens_per_step(a.config) != per_step]
    if other:
        notes.append(
            f"Other tokens a step than the baseline, so not paired by batch: {_listed(other)}."
        )
    return notes


def _other_texts(arms: Sequence[PlannedArm], metric: str) -> list[str]:
    """A factor that changes the text changes what is held out of it, unless that is given."""
    base = held_out(arms[0].config["data"])
    own = [arm.name for arm in arms if held_out(arm.config["data"]) != base]
    if not own or not metric.startswith("val/"):
        return []
    return [
        f"Other held-out text than the baseline's, so {metric} compares the texts as well: "
        f"{_listed(own)}. To compare models on one text give all arms data.validation_path."
    ]


def _whole_gradients(arms: Sequence[PlannedArm]) -> list[str]:
    """Of divided weights, where several micro-batches make a batch: what the division does not
    save.
    """
    kept = [arm for arm in arms if _keeps_whole_gradients(arm.config)]
    if not kept:
        return []
    largest = max(kept, key=lambda arm: arm.parameters)
    return [
        f"Each process keeps the gradients of all weights from one micro-batch to the next "
        f"({gib(4 * largest.parameters)} in {largest.name}), though the weights are divided; "
        "parallel.grad_sync_mode=micro_batch divides them too, at the price of as many messages "
        "as micro-batches."
    ]


def _keeps_whole_gradients(config: Mapping[str, Any]) -> bool:
    train, parallel = config["train"], config["parallel"]
    several = (train["micro_batch_size"] or train["batch_size"]) < train["batch_size"]
    divides = parallel["name"] in ("fsdp", "hsdp")
    return divides and parallel["grad_sync_mode"] == "batch" and several


def _widths(arm: PlannedArm) -> str | None:
    """What a taper came to."""
    told = resolved(ModelConfig(**arm.config["model"]))
    if is_uniform(told):
        return None
    runs = [(w, len(list(same))) for w, same in itertools.groupby(told.layer_widths or [])]
    layers = ", ".join(f"{n} x {w}" for w, n in runs)
    hidden = f"MLPs {told.hidden_size / told.d_model:.3g} times as wide"
    return f"{arm.name}: layers, from the lowest, {layers}; {hidden}."


def _listed(names: Sequence[str], most: int = 8) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")
