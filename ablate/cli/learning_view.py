"""What a plan prints of its rule, its power and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.cli.amount import amount
from ablate.cli.progress import duration

if TYPE_CHECKING:
    from ablate.plan import Plan

__all__ = ["claim_lines", "cost_lines", "learning_lines", "rule_lines"]


def rule_lines(rule: Mapping[str, Any], seeds: int) -> list[str]:
    margin = ""
    if rule["margin"] != rule["smallest_effect"]:
        margin = f", equivalent within ±{rule['margin']:g}"
    lines = [
        f"Decided on {rule['metric']}, smallest effect of interest {rule['smallest_effect']:g}"
        f"{margin}, alpha {rule['alpha']:g}, {rule['correction']}."
    ]
    spending = rule["spending"]
    if spending:
        looks = ", ".join(
            f"{n} seeds at {alpha:.2g}" + (" (this one)" if n == seeds else "")
            for n, alpha in zip(spending["looks"], spending["alpha_at_look"], strict=True)
        )
        lines.append(f"Looks by {spending['rule'].replace('_', '-')} spending: {looks}.")
    return lines


def claim_lines(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the study tests of what others said."""
    lines = []
    for claim in claims:
        share = claim["relative"] is not None
        size = claim["relative"] if share else claim["absolute"]
        word = "than" if claim["direction"] == "no_worse" else "by"  # which way says the direction
        by = "" if size is None else f" {word} {abs(size) * (100 if share else 1):.3g}"
        by += " %" if share else ""
        what = f"{claim['metric']} of {claim['of']} {claim['direction'].replace('_', ' ')}{by}"
        lines.append(f"Tests the claim “{claim['statement']}”: {what}, against {claim['against']}.")
    return lines


def learning_lines(plan: Plan, *, before: bool = True) -> list[str]:
    """Noise, power and seeds; `before`: the pilot, if any, is still to run."""
    learning, noise = plan.learning, plan.noise
    metric, smallest = plan.decide["metric"], plan.decide["smallest_effect"]
    lines = _pilot(plan) if before else []
    if noise.sd is None:
        return [*lines, f"Smallest detectable effect: unknown, since {noise.source}."]
    degrees = f", {noise.df} degrees of freedom" if noise.df else ""
    said = f"sd {noise.sd:.2g} paired by seed"
    if noise.kind == "pilot":
        said = f"sd {noise.sd:.2g} between seeds, and what pairing removes of it is not known yet"
    elif noise.unpaired is not None:
        said += f", {noise.unpaired:.2g} unpaired"
    lines.append(f"Noise of a trial: {said} (from {noise.source}{degrees}).")
    if learning.detectable is None:
        return [*lines, f"Smallest detectable effect: unknown ({learning.reason})."]
    unpaired = ""
    if learning.detectable_unpaired is not None:
        unpaired = f", {learning.detectable_unpaired:.2g} unpaired"
    lines.append(
        f"Smallest detectable effect at 80 % power: {learning.detectable:.2g} {metric} "
        f"paired{unpaired}."
    )
    if learning.main_effect is not None:
        lines.append(f"Smallest main effect told from 0: {learning.main_effect:.2g} {metric}.")
    lines.append(f"Found at a true effect of {'; '.join(map(_power, learning.power))}.")
    if any(row["low"] is not None for row in learning.power):
        lines.append(
            "In brackets: the 80 % range, since the sd is itself an estimate "
            f"({noise.df} degrees of freedom)."
        )
    needed = [
        f"{n if n is not None else 'more than 1000'} {word}"
        for n, word in (
            (learning.seeds_needed, "paired"),
            (learning.seeds_needed_unpaired, "unpaired"),
        )
        if noise.unpaired is not None or word == "paired"
    ]
    lines.append(
        f"Seeds needed for the effect of interest, to tell {smallest:g} from 0: "
        f"{', '.join(needed)}. An effect of just that size is called better every other time at "
        "most: its estimate must reach it too."
    )
    return lines


def _power(row: Mapping[str, Any]) -> str:
    text = f"{row['effect']:.2g}"
    multiple = row["standard_errors"]
    if multiple is not None and multiple in (1, 2, 4):
        text += f" ({multiple:g} se)"
    text += f": {row['power']:.0%}"
    return text if row["low"] is None else f"{text} [{row['low']:.0%}–{row['high']:.0%}]"


def _pilot(plan: Plan) -> list[str]:
    if not plan.pilot_seeds:
        return []
    return [
        f"Pilot: {len(plan.pilot_trials)} trials of {plan.baseline} run first, to measure the "
        "noise; plan again after them."
    ]


def cost_lines(plan: Plan) -> list[str]:
    cost = plan.cost
    hours = "Hours: unknown"
    if cost.hours is not None:
        hours = f"{duration(3600 * cost.hours)} of trials"
    disk = f"about {amount(cost.disk)}B on disk"
    return [f"Cost: {amount(cost.flops)}FLOPs, {disk}. {hours} ({cost.speed})."]
