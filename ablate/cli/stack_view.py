"""What a plan and a launch say of trials that are trained as one batch of models."""

from __future__ import annotations

from ablate.plan import Plan

__all__ = ["stack_lines"]

REASONS, NAMES = 4, 3
"""So many are shown."""
WIDEST_ON_CPU = 64
"""Models wider than this gain nothing from it on a CPU (docs/scale.md)."""


def stack_lines(plan: Plan) -> list[str]:
    """Which are, which are not and why; none where that is not asked for."""
    stacking = plan.stacking
    if stacking is None:
        return []
    members = {trial for stack in stacking.stacks for trial in stack}
    lines = []
    if members:
        lines.append(f"Stacked: {len(members)} trials as {len(stacking.stacks)} batches of models.")
    reasons: dict[str, list[str]] = {}
    for trial, reason in stacking.alone.items():
        reasons.setdefault(reason, []).append(trial)
    for reason, trials in list(reasons.items())[:REASONS]:
        more = len(trials) - NAMES
        some = ", ".join(trials[:NAMES]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"Not stacked, {reason}: {some}.")
    widest = max((t.config["model"]["d_model"] for t in plan.trials if t.id in members), default=0)
    if widest > WIDEST_ON_CPU and plan.trials[0].config["train"]["device"] in ("auto", "cpu"):
        lines.append(
            f"On a CPU, models wider than {WIDEST_ON_CPU} are no faster stacked than one after "
            "another (docs/scale.md)."
        )
    return lines
