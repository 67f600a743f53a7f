"""What a trial that goes on is told of: that it is computed otherwise than before it stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ablate.rundir import Attempt, other_machinery, read_jsonl
from ablate.rundir.names import EVENTS

__all__ = ["moved", "restacked"]

log = logging.getLogger(__name__)


def restacked(attempt: Attempt, earlier: int, step: int, known: dict[str, Any]) -> dict[str, Any]:
    """Of a trial that goes on in another stack than it was in, or in none, or in one only now:
    `restacked`, how many models were in its batch and how many are. Told to the log and the
    attempt too.
    """
    before, now = (
        {k: seat.get(k) for k in ("stacked", "seat")}
        for seat in (Attempt(attempt.trial, earlier).record(), known)
    )
    if before == now:
        return {}
    widths = [int(seat["stacked"] or 1) for seat in (before, now)]
    log.warning(
        "Up to step %s this was one of %s models in a batch, from there on it is one of %s, which "
        "rounds otherwise: its curve is that of neither (docs/scale.md).", step, *widths
    )  # fmt: skip
    attempt.note(restacked=widths)
    return {"restacked": widths}


def moved(attempt: Attempt, earlier: int, step: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Of a trial that goes on by other kernels, instructions or devices than it ran by before:
    `moved`, in words. Told to the log and the attempt too.

    Args:
        attempt: that goes on.
        earlier: the number of the one whose checkpoint it goes on from.
        step: of that checkpoint.
        facts: what its first event says.
    """
    events = read_jsonl(Attempt(attempt.trial, earlier).path / EVENTS)
    before = next((e for e in events if e.get("kind") in ("start", "resume")), {})
    said = other_machinery(before, facts)
    if not said:
        return {}
    log.warning(
        "From step %s on: %s. Its bits are not those of an undisturbed run.", step + 1, said
    )
    attempt.note(moved=said)
    return {"moved": said}
