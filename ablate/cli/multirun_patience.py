"""What a client that waits for jobs on SLURM gives up, and what it submits again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ablate.cli.multirun_launchers import command, undisturbed
from ablate.config.schema import ClusterConfig
from ablate.errors import AblateError
from ablate.launch import budget
from ablate.launch.slurm.states import UNFINISHED
from ablate.rundir import ENDED, LEASE_SECONDS, StudyDir, incidents

if TYPE_CHECKING:
    from ablate.launch.trial_view import TrialView

__all__ = ["Patience", "Resubmission"]

PATIENCE_SECONDS = 60.0
"""A job that SLURM calls over may still be requeued; after so long it is not."""
UNKNOWN_SECONDS = 3 * LEASE_SECONDS
"""A job that a working SLURM does not know (no accounting, or forgotten) is over after so long."""
TRIES = 3
"""So often without progress what SLURM has forgotten is submitted again."""


class Patience:
    """Tells a trial that is between two of its jobs from one that nobody runs any more."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def over(self, view: TrialView, answers: bool, feeder: str | None = None) -> str | None:
        """Why to wait no more; None as long as it may still run.

        Args:
            view: of a trial that has not ended.
            answers: whether SLURM answers; without its word nothing is given up.
            feeder: SLURM's word for the job that submits what was held back or lost.
        """
        word = view.slurm_state
        runs = view.status == "running" or word in UNFINISHED or feeder in UNFINISHED
        if runs or not answers:
            self._since.pop(view.id, None)
            return None
        word = word or (feeder if view.job_id is None else None)
        age = time.monotonic() - self._since.setdefault(view.id, time.monotonic())
        if age < (PATIENCE_SECONDS if word else UNKNOWN_SECONDS):
            return None
        job = f"job {view.job_id}" if view.job_id else "the feeder"
        said = f"SLURM says {word} of {job}" if word else f"SLURM knows no {job}"
        return (
            f"{said} and does not run it again ({view.reason or 'it says no reason'}). "
            "The same command submits it again."
        )

    def forget(self) -> None:
        """Everything is waited for anew."""
        self._since.clear()


class Resubmission:
    """Submits again what SLURM has forgotten: it was killed before it had saved its state, and the
    feeder that looks after the lost ones was forgotten with them.
    """

    def __init__(self, study: StudyDir, clusters: Mapping[str, ClusterConfig]) -> None:
        """`clusters`: trial id -> what it asks for."""
        self._study, self._clusters = study, clusters
        self._tries, self._reached = 0, -1

    def submit(
        self, views: Sequence[TrialView], given_up: Sequence[TrialView], feeder: str | None
    ) -> str | None:
        """What was done, in words; None where nothing is to be waited for.

        Args:
            views: of every trial.
            given_up: of those that nobody runs any more.
            feeder: as for `Patience.over`.
        """
        from ablate.launch.slurm.submit import submit

        unknown = [v for v in given_up if v.slurm_state is None or feeder is None]
        lost = [v for v in unknown if self._may(v)]
        if not lost or incidents.held(self._study.path) or budget.exhausted(self._study):
            return None
        reached = sum(v.steps if v.status in ENDED else v.step for v in views)
        self._tries = 1 if reached > self._reached else self._tries + 1
        self._reached = reached
        if self._tries > TRIES:
            return None
        gone = {v.id for v in given_up} - {v.id for v in lost}
        left = [v.id for v in views if v.status not in ENDED and v.id not in gone]
        trials = [self._study.trial(id) for id in left]
        clusters = {id: self._clusters[id] for id in left}
        words, first = command(), clusters[left[0]]
        try:
            with undisturbed("slurm"):
                made = submit(self._study, trials, first, command=words, clusters=clusters)
            jobs = ", ".join(s.job_id for s in made if s.kind == "trials") or "nothing new"
            done = f"submitted again as {jobs}"
        except AblateError as error:
            done = f"not submitted again: {error}"
        return f"SLURM has forgotten {len(lost)} of the trials; {done}."

    def _may(self, view: TrialView) -> bool:
        return self._clusters[view.id].heal and not self._study.trial(view.id).cancel_asked()
