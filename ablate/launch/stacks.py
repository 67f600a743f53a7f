"""Which trials start together in one process, and on which seats.

A trial that has begun keeps its stack, whoever of it is left: with the same seats it goes on bit
for bit. One that began alone goes on alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.plan.stacking import stacking_of
from ablate.rundir import TrialDir

__all__ = ["Stacks"]


class Stacks:
    """The seats of each trial that does not run alone: ids of its stack, in order."""

    def __init__(self, seats: Mapping[str, Sequence[str]] | None = None) -> None:
        self._seats = {trial: tuple(ids) for trial, ids in (seats or {}).items()}

    @classmethod
    def of(cls, trials: Iterable[TrialDir], size: int) -> Stacks:
        """Of the trials that a launch is about to run; `size` 1 leaves each alone."""
        if size == 1:
            return cls()
        seats: dict[str, Sequence[str]] = {}
        fresh: list[tuple[str, Mapping[str, Any]]] = []
        for trial in trials:
            begun = [a.record() for a in trial.attempts() if a.has_begun()]
            if begun:
                seats[trial.id] = begun[-1].get("seats") or [trial.id]
            else:
                fresh.append((trial.id, trial.config()))
        for stack in stacking_of(fresh, size).stacks:
            seats |= dict.fromkeys(stack, stack)
        return cls({trial: ids for trial, ids in seats.items() if len(ids) > 1})

    def seats(self, trial: TrialDir) -> tuple[str, ...]:
        """Of its stack; of a trial that runs alone, its own."""
        return self._seats.get(trial.id, (trial.id,))

    def mates(self, trial: TrialDir, waiting: Iterable[TrialDir]) -> list[TrialDir]:
        """Those of `waiting` that start with it."""
        ids = self.seats(trial)
        return [other for other in waiting if other.id in ids and other.id != trial.id]
