"""How a plan looks in a terminal: a table where there is room, a list where there is not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ablate.cli.amount import amount
from ablate.cli.design_view import design_lines
from ablate.cli.learning_view import claim_lines, cost_lines, learning_lines, rule_lines
from ablate.cli.memory_view import memory_line
from ablate.cli.stack_view import stack_lines
from ablate.cli.width import pipe_width
from ablate.config.sources import SOURCES
from ablate.errors import show
from ablate.plan import Plan, PlannedArm, gib, kernel_lines

__all__ = ["amount", "check_view", "console", "plan_view"]

ROOM = 36
"""Columns that the differences have at least: with less an arm is a paragraph, not a row."""
LONGEST_NAME = 48
"""Where arms have longer names, what they differ in stands below the name and not beside it."""
MOST_NAMED = 8
"""Arms; of more the foot gives the number."""


def console() -> Console:
    """Standard output; into a pipe plain text of `pipe_width` columns."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=pipe_width(), highlight=False, color_system=None, force_terminal=False)


def plan_view(plan: Plan, width: int) -> RenderableType:
    parts: list[RenderableType] = [_head(plan)]
    parts += [Text(""), _table(plan)] if _narrowest(plan) <= width else [_list(plan)]
    parts.append(Text(""))
    described = design_lines(plan.design_info or {})
    if described:
        parts += [Text(line) for line in described] + [Text("")]
    parts += [Text(line) for line in _foot(plan)]
    return Group(*parts)


def _head(plan: Plan) -> Text:
    head = Text()
    head.append(plan.study, style="bold")
    head.append(f"  {plan.question}\n")
    design = f"{plan.design} over " + ", ".join(plan.factors)
    head.append(f"{design}; baseline: {' '.join(plan.base) or 'the defaults'}", style="dim")
    return head


def _table(plan: Plan, room: int | None = None) -> Table:
    """`room`: columns for the differences; null: as many as there are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    short = max(len(arm.name) for arm in plan.arms) <= LONGEST_NAME
    if short:
        table.add_column("arm", style="bold", no_wrap=True)
        table.add_column("against", no_wrap=True)
        table.add_column("differs in", overflow="fold", ratio=1, width=room)
    else:
        table.add_column("arm, and what it differs in", overflow="fold", ratio=1, width=room)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("FLOPs/token", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    if any(arm.resized for arm in plan.arms):
        table.add_column("resized", no_wrap=True)
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    counts = _counts(plan)
    for arm in plan.arms:
        row: list[RenderableType]
        if short:
            row = [Text(arm.name), Text(arm.reference or "–"), Text(_differences(arm))]
        else:
            row = [_above(arm)]
        row += [f"{arm.parameters:,}", amount(arm.flops_per_token), gib(arm.memory.peak)]
        if any(other.resized for other in plan.arms):
            row.append(Text(_pairs(arm.resized) or "–"))
        table.add_row(*row, str(counts[arm.name]), amount(counts[arm.name] * plan.tokens))
    return table


def _narrowest(plan: Plan) -> int:
    """Columns that the table needs so that nothing but the differences is broken."""
    wide = Console(width=10_000)
    return Measurement.get(wide, wide.options, _table(plan, ROOM)).maximum


def _above(arm: PlannedArm) -> RenderableType:
    """The name, and indented below it reference and differences."""
    against = f"against {arm.reference}: " if arm.reference else ""
    below = Text(against + _differences(arm))
    return Group(Text(arm.name, style="bold"), Padding(below, (0, 0, 0, 2)))


def _list(plan: Plan) -> RenderableType:
    """What all arms have in common (reference, trials, tokens) is left to the foot."""
    counts = _counts(plan)
    alike = len(set(counts.values())) == 1
    text = Text()
    if len(plan.arms) > 1:
        text.append(f"Each against {plan.baseline}, where no other arm is named.\n", style="dim")
    for arm in plan.arms:
        text.append(arm.name, style="bold")
        ladder = arm.reference not in (None, plan.baseline)
        text.append(f" against {arm.reference}\n" if ladder else "\n")
        if arm.reference:
            text.append(f"  {_differences(arm)}\n")
        facts = [f"{arm.parameters:,} params", f"{amount(arm.flops_per_token)} FLOPs/token"]
        if not alike:
            tokens = amount(counts[arm.name] * plan.tokens)
            facts += [f"{counts[arm.name]} trials", f"{tokens} tokens"]
        facts.append(gib(arm.memory.peak))
        if arm.resized:
            facts.append(f"resized {_pairs(arm.resized)}")
        text.append(f"  {', '.join(facts)}\n")
    text.rstrip()
    return text


def _counts(plan: Plan) -> dict[str, int]:
    counts = dict.fromkeys((arm.name for arm in plan.arms), 0)
    for trial in plan.trials:
        counts[trial.arm] += 1
    return counts


def _differences(arm: PlannedArm) -> str:
    """The digest of code (`sources.FIELD`) is left out where FIELD itself differs and says it."""
    if arm.reference is None:
        return "(the baseline)"
    change = {
        k: v
        for k, v in arm.change.items()
        if k not in arm.resized and k.removeprefix(f"{SOURCES}.") not in arm.change.keys() - {k}
    }
    lines = [_pairs(change) or "(only resized)"]
    return "; ".join([*lines, *arm.replaces])


def _pairs(fields: dict[str, list[Any]]) -> str:
    return ", ".join(
        f"{name.removeprefix('model.')} {show(old)}→{show(new)}"
        for name, (old, new) in fields.items()
    )


def _foot(plan: Plan) -> list[str]:
    lines = [
        f"{len(plan.arms)} arms, {len(plan.trials)} trials of {plan.steps:,} steps "
        f"({amount(plan.tokens)} tokens): {amount(plan.total_tokens)} tokens, "
        f"{amount(plan.total_flops)}FLOPs in all."
    ]
    lines.append(memory_line(plan))
    if plan.rates:
        lines += _rate_lines(plan)
    for paired in dict.fromkeys(arm.paired for arm in plan.arms if arm.paired):
        names = [arm.name for arm in plan.arms if arm.paired == paired]
        who = ", ".join(names)
        if len(names) > MOST_NAMED:
            who = f"{len(names)} of {len(plan.arms)} arms"
        lines.append(f"Paired with its reference after resizing, {who}: {paired}.")
    lines += kernel_lines(plan.arms)
    lines += rule_lines(plan.decide, plan.seeds) + claim_lines(plan.claim or [])
    lines += learning_lines(plan) + cost_lines(plan)
    lines += stack_lines(plan)
    return lines + [f"Note: {note}" for note in plan.notes]


def _rate_lines(plan: Plan) -> list[str]:
    """The bracket, once where every arm tries the same."""
    tried: dict[str, dict[float, None]] = {}
    for trial in plan.trials:
        tried.setdefault(trial.arm, {})[trial.config["optim"]["lr"]] = None
    listed = {arm: ", ".join(f"{rate:g}" for rate in sorted(own)) for arm, own in tried.items()}
    if len(set(listed.values())) == 1:
        return [f"Every arm at optim.lr {next(iter(listed.values()))}."]
    groups: dict[str, list[str]] = {}
    for arm, rates in listed.items():
        groups.setdefault(rates, []).append(arm)
    return [
        f"At optim.lr {rates}: "
        + (", ".join(arms) if len(arms) <= MOST_NAMED else f"{len(arms)} of {len(listed)} arms")
        + "."
        for rates, arms in groups.items()
    ]


def check_view(results: Sequence[Any], width: int) -> RenderableType:
    """The proofs of `--check`, one line for each arm, and how good the plan's memory is."""
    lines = [Text(""), Text("Checked by building:", style="bold")]
    lines += [Text(f"  {result.arm}: {result.proof}") for result in results]
    lines += [
        Text(f"{result.arm}: it is not known to be causal ({result.not_causal}).")
        for result in results
        if result.not_causal is not None
    ]
    worst = max(
        (result for result in results if result.off is not None),
        key=lambda result: abs(result.off),
        default=None,
    )
    if worst is not None:
        lines.append(
            Text(
                f"Activations by formula are off by {worst.off:+.1%} at the most, in {worst.arm}: "
                f"{gib(worst.activations)}, with tables of {gib(worst.tables)}, where autograd "
                f"keeps {gib(worst.traced)} ({worst.layers} layers on a CPU)."
            )
        )
    lines += [
        Text(f"{result.arm}: its activations were not traced ({result.not_traced}).")
        for result in results
        if result.off is None
    ]
    return Group(*lines)
