"""`ablate plan sweep=NAME ...`: the arms of a sweep before anything runs. Writes nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from ablate.cli.arguments import Parser
from ablate.cli.asked import asked_plan
from ablate.config.schema import DataConfig
from ablate.launch.room import too_large_here
from ablate.plan import Plan

__all__ = ["main"]

DESCRIPTION = """\
Shows the arms of a sweep with their differences, parameters, FLOPs, tokens, cost and the smallest
effect that the sweep can detect. Refuses arms that are illegal, inert, in conflict or the same.
Writes nothing."""

EXAMPLES = """\
  ablate plan sweep=hello                          the demo
  ablate plan sweep=hello sweep.seeds=6            more seeds
  ablate plan sweep=positions size=4m              another size
  ablate plan sweep=hello --check                  also builds every arm and tests it
  ablate plan hello                                a frozen study, with the noise as known by now
  ablate plan sweep=hello --json                   for scripts
"""


def parser() -> Parser:
    made = Parser("plan", description=DESCRIPTION, examples=EXAMPLES)
    made.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="Hydra overrides, sweep=NAME among them (or a STUDY)",
    )
    made.add_argument("--json", action="store_true", help="one JSON object on standard output")
    made.add_argument(
        "--check",
        action="store_true",
        help="build every arm (on the meta device, and small) and prove that it reads no later "
        "token and that each toggle changes the function or the training",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """0 for a sound plan; errors are raised as AblateError (exit code 2)."""
    options = parser().read(argv)
    plan = asked_plan(options.overrides)
    _glance_at_data(plan)
    plan = dataclasses.replace(plan, notes=[*plan.notes, *_too_large(plan)])
    checks = None
    if options.check:
        from ablate.cli.check import check  # imports torch

        checks = check(plan)
    if options.json:
        shown = plan.to_json()
        if checks is not None:
            shown["checks"] = [result.to_json() for result in checks]
        json.dump(shown, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    _print(plan, checks)
    return 0


def _glance_at_data(plan: Plan) -> None:
    """Text that is missing or too short, or that the model has too few tokens for, is said now, not
    at the launch.
    """
    arms = [arm for arm in plan.arms if arm.config["data"]["path"] is not None]
    if not arms:
        return
    from ablate.data import open_data
    from ablate.data.glance import glance, is_token_folder  # numpy costs a plan more than all else

    seen = []
    for arm in arms:
        data = DataConfig(**arm.config["data"])
        length = (
            arm.config["train"]["sequence_length"] or arm.config["model"]["max_sequence_length"]
        )
        model = {k: arm.config["model"].get(k) for k in ("vocab_size", "eos_token_id")}
        if (data, length, model) not in seen:
            seen.append((data, length, model))
            if glance(data, length):
                data.check_vocabulary(model)
            elif is_token_folder(data):  # its data.json says all that is asked of it
                open_data(data, eos_token_id=model["eos_token_id"]).check(
                    model["vocab_size"], length
                )


def _too_large(plan: Plan) -> list[str]:
    """That the arm which needs most does not fit this machine, which the launch would refuse. The
    plan stands: it may be made here for another machine.
    """
    arm = max(plan.arms, key=lambda arm: arm.memory.peak)
    said = too_large_here(arm.config)
    return [f"a launch on this machine would be refused: arm {arm.name} {said}"] if said else []


def _print(plan: Plan, checks: list | None) -> None:  # type: ignore[type-arg]
    from ablate.cli.plan_view import check_view, console, plan_view

    out = console()
    out.print(plan_view(plan, out.width))
    if checks is not None:
        out.print(check_view(checks, out.width))
