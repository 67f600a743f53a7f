"""What a plan prints of its design besides the arms: aliases, orders, lineage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["design_lines"]

MOST_ORDERS_SHOWN = 8


def design_lines(info: Mapping[str, Any]) -> list[str]:
    kinds = {"fractional": _fractional, "ladder": _ladder, "random": _random}
    kind = kinds.get(str(info.get("kind")))
    lines = list(kind(info)) if kind else []
    if info.get("lineage"):
        path = " → ".join(f"{step['study']}:{step['arm']}" for step in info["lineage"])
        lines.append(f"Adopted before this round: {path}.")
    return lines


def _fractional(info: Mapping[str, Any]) -> Iterator[str]:
    if info["resolution"] is None:
        yield f"All {info['runs']} combinations: no fraction has resolution {info['asked']}."
        return
    share = info["full_runs"] // info["runs"]
    yield (
        f"Resolution {info['roman']}: {info['runs']} of {info['full_runs']} combinations "
        f"(1/{share}); {'; '.join(info['generators'])}."
    )
    if not info["aliases"]:
        yield "Main effects and two-way interactions are clear of each other."
        return
    yield "Confounded, so that only the sum is known (up to two-way interactions):"
    for first, others in info["aliases"].items():
        yield (
            "  "
            + first
            + "".join(
                f" - {other[1:]}" if other.startswith("-") else f" + {other}" for other in others
            )
        )
    clear = "main effects" if info["resolution"] >= 4 else None
    if clear:
        yield f"Clear of these: {clear}."


def _ladder(info: Mapping[str, Any]) -> Iterator[str]:
    if len(info["orders"]) < 2:
        return
    arms = {arm for order in info["orders"] for arm in order}
    drawn = f", drawn with seed {info['draw_seed']}" if info["draw_seed"] is not None else ""
    yield f"{len(info['orders'])} orders{drawn}, which share {len(arms)} arms:"
    for steps in info["steps"][:MOST_ORDERS_SHOWN]:
        yield "  " + " → ".join(steps)
    left = len(info["orders"]) - MOST_ORDERS_SHOWN
    if left > 0:
        yield f"  and {left} more"


def _random(info: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{info['arms']} of {info['combinations'] - 1} combinations, drawn with seed "
        f"{info['draw_seed']}."
    )
