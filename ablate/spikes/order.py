"""Which batch a step trained on, after what responses did to the order of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["number_of", "with_batches"]


def number_of(step: int, responses: Sequence[Mapping[str, Any]]) -> int:
    """The number of the batch.

    Args:
        step: of the training.
        responses: the trial's events of that kind, in their order.
    """
    number = step
    for event in responses:
        if event["what"] == "rewind" and event["step"] < step:
            number = step + event["next_batch"] - event["step"] - 1
        if event["what"] == "skip_batch" and event["step"] == step:
            number = event["instead"]
    return number


def with_batches(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events of one trial; those with a peak say the `batch` that it trained on."""
    responses = [e for e in events if e.get("kind") == "response"]
    made = []
    for event in events:
        peak = event.get("peak")
        known = {} if peak is None else {"batch": number_of(int(peak), responses)}
        made.append(known | dict(event))
    return made
