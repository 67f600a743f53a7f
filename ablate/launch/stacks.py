"""Which trials start together in one process, and on which seats.

A trial that has begun keeps its seat, whoever else of its stack is left: so it goes on bit for bit.
One that began alone goes on alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ablate.errors import StudyError
from ablate.plan.stacking import Stacking, stacking_of
from ablate.rundir import TrialDir

__all__ = ["Stacks"]


class Stacks:
    """The seats of each trial that does not run alone: ids of its stack, in order."""

    def __init__(self, seats: Mapping[str, Sequence[str]] | None = None) -> None:
        self._seats = {id: tuple(ids) for id, ids in (seats or {}).items() if len(ids) > 1}

    @classmethod
    def of(
        cls, trials: Iterable[TrialDir], size: int | None, planned: Stacking | None = None
    ) -> Stacks:
        """Of the trials that a launch is about to run.

        Args:
            trials: in order.
            size: `cluster.stack`. None: those that have begun go on as they did; 1: all alone.
            planned: stacks of those that have not begun; None: as their configurations say.
        """
        if size == 1:
            return cls()
        found = {trial.id: (trial, _seats_of(trial)) for trial in trials}
        begun = {id: seats for id, (_, seats) in found.items() if seats}
        # One that was stopped before its first row sits with those of its stack that came further.
        joined = {id: seats for seats in begun.values() for id in seats if id in found}
        fresh = {id: None for id in found if id not in begun and id not in joined}
        if size is None:
            planned = Stacking()
        elif planned is None:
            planned = stacking_of(_configs(found[id][0] for id in fresh), size)
        stacks = [[id for id in stack if id in fresh] for stack in planned.stacks]
        return cls({id: ids for ids in stacks for id in ids} | joined | begun)

    def include(self, others: Stacks) -> None:
        self._seats |= others._seats

    def seats(self, trial: TrialDir) -> tuple[str, ...]:
        """Of its stack; of a trial that runs alone, its own."""
        return self._seats.get(trial.id, (trial.id,))

    def mates(self, trial: TrialDir, waiting: Iterable[TrialDir]) -> list[TrialDir]:
        """Those of `waiting` that start with it."""
        seats = self.seats(trial)
        if len(seats) == 1:
            return []
        others = [other for other in waiting if other.id != trial.id and other.id in seats]
        return [other for other in others if self.seats(other) == seats]

    def groups(self, ids: Iterable[str]) -> list[list[str]]:
        """The same trials, by which of them start together; in the order of their first ones."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for id in ids:
            groups.setdefault(self._seats.get(id, (id,)), []).append(id)
        return list(groups.values())


def _seats_of(trial: TrialDir) -> list[str]:
    """Those that the trial had when it last came to a row; empty where it has not begun."""
    try:
        newest = next((a for a in reversed(trial.attempts()) if a.has_begun()), None)
        return [] if newest is None else newest.record().get("seats") or [trial.id]
    except StudyError:  # a damaged file, which is the trial's own trouble
        return [trial.id]


def _configs(trials: Iterable[TrialDir]) -> Iterator[tuple[str, dict[str, Any]]]:
    for trial in trials:
        with contextlib.suppress(StudyError):  # it will fail, alone
            yield trial.id, trial.config()
