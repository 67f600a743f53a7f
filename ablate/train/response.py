"""The interface of what a trial does about its own spikes; it is asked three times a step.

    judge     before the update: update, skip, replace (by another batch) or diverge
    limit     after it: the share of the update that stays
    answer    when the row is written: go back, lower the rate, or end the trial

What was done is in `done` until the loop writes it down. Everything is a function of the record, so
an interrupted trial goes on as the undisturbed one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ablate.config.schema import SpikesConfig

__all__ = ["Observe", "Seen", "Silent", "Trainable", "Verdict"]

Verdict = Literal["update", "skip", "replace", "diverge"]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the detector says about a step."""

    alarm: bool
    """It gives an alarm at this step."""
    calm: bool
    """No event is going on."""


class Trainable(Protocol):
    """What a response may lay hands on."""

    def capture(self) -> dict[str, Any]: ...

    def put_back(self, state: dict[str, Any]) -> None: ...


class Observe:
    """Nothing. An import path names a class with this interface, say a subclass.

    A loss or gradient norm that is not finite ends the trial.
    """

    passive = False
    """Whether `answer` may come some steps late, since it does nothing."""

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.counts: Counter[str] = Counter()
        self.done: list[dict[str, Any]] = []

    def begin(self, run: Trainable) -> None:
        """Before the first step of all."""

    def batch(self, step: int) -> int:
        """The number of the batch that `step` trains on."""
        return step

    def rate(self, step: int) -> float:
        """A factor on the schedule's learning rate."""
        return 1.0

    def judge(self, step: int, loss: float, norm: float) -> Verdict:
        return "update" if math.isfinite(loss) and math.isfinite(norm) else "diverge"

    @property
    def limits(self) -> bool:
        """Whether `limit` is of this class's own, and so has to be asked at every update."""
        return type(self).limit is not Observe.limit

    def limit(self, step: int, norm: float) -> float:
        return 1.0

    def answer(self, run: Trainable, step: int, loss: float, seen: Seen) -> str | None:
        """Returns why the trial is to be ended, or None."""
        return None

    def note(self, what: str, **fields: Any) -> None:
        self.counts[what] += 1
        self.done.append({"what": what, **fields})

    def columns(self) -> dict[str, Any]:
        """Of the row; none while there is nothing that a response could have done."""
        return {"spikes/responses": self.counts.total()}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = Counter(state["counts"])


class Silent(Observe):
    """The default: rows are those of a trial without any detector."""

    passive = True

    def columns(self) -> dict[str, Any]:
        return {}
