"""Colours that read on white and on black, for arms and for verdicts; where a legend stands."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LEGEND", "VERDICT_COLOURS", "arm_colours", "arm_dashes", "translucent"]

LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0}
"""Of plotly: above the plot."""

_BASELINE = "#8a8f98"
_ARMS = (
    "#3b82d6",
    "#e0762a",
    "#2f9e6b",
    "#c9508f",
    "#8d6bd8",
    "#b58a1b",
    "#1fa3b5",
    "#d9534f",
    "#6f9a2d",
    "#a0674b",
)
_DASHES = ("solid", "dash", "dot", "dashdot")

VERDICT_COLOURS = {
    "better": "#2f9e6b",
    "worse": "#d9534f",
    "equivalent": "#3b82d6",
    "undecided": "#b58a1b",
    "edge": "#8d6bd8",
    "baseline": _BASELINE,
}


def arm_colours(arms: Sequence[str], baseline: str | None) -> dict[str, str]:
    """The baseline is grey; the others take the colours in turn."""
    others = [a for a in arms if a != baseline]
    colours = {a: _ARMS[i % len(_ARMS)] for i, a in enumerate(others)}
    return {a: colours.get(a, _BASELINE) for a in arms}


def arm_dashes(arms: Sequence[str], baseline: str | None) -> dict[str, str]:
    """Tells the eleventh arm from the first, whose colour it shares."""
    others = [a for a in arms if a != baseline]
    dashes = {a: _DASHES[i // len(_ARMS) % len(_DASHES)] for i, a in enumerate(others)}
    return {a: dashes.get(a, "solid") for a in arms}


def translucent(colour: str, alpha: float) -> str:
    """`#rrggbb` as rgba()."""
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},{alpha:g})"
