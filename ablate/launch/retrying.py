"""Opens trials that have ended badly, so that the next launch, job or requeue runs them again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from ablate.config.sources import edited
from ablate.errors import StudyError, TrialHeldError
from ablate.launch.cancelling import unmark
from ablate.rundir import StudyDir, TrialDir, mend_summary

__all__ = ["AFRESH", "RETRIED", "chosen", "mend_states", "refuse_edited", "reopen"]

RETRIED = ("failed", "cancelled")
"""What a retry takes where nothing else is asked for. A diverged trial is a result."""
AFRESH = ("diverged",)
"""Begin at the first step: a checkpoint from before a divergence leads into it again."""


def chosen(
    study: StudyDir, statuses: Collection[str], ids: Collection[str] | None
) -> list[TrialDir]:
    """The trials of those statuses among `ids` (None: all of the study).

    Raises:
        StudyError: where a trial that was named is running, or done.
    """
    found = []
    for trial in study.trials():
        if ids is not None and trial.id not in ids:
            continue
        status = trial.live_state().status
        if ids is not None and status == "running":
            raise StudyError(f"Trial {trial.id} is running. Cancel it first, or wait for it.")
        if ids is not None and status == "done":
            raise StudyError(
                f"Trial {trial.id} is done, and what is finished is not run again. `ablate train` "
                "with force=true starts a single trial afresh."
            )
        if ids is not None or status in statuses:
            found.append(trial)
    return found


def mend_states(study: StudyDir) -> list[str]:
    """Writes every damaged state.json anew, from what the trial's newest attempt left, every
    damaged attempt.json, from the attempt's own logs, and every damaged summary.json of a trial
    that is done, from the attempt's copy or the record; says so.

    A trial that runs writes its own at its next heartbeat.
    """
    said = []
    for trial in study.trials():
        state = trial.live_state()
        if state.status == "running":
            continue
        said += [f"{trial.id}: {done}" for a in trial.attempts() if (done := a.mend())]
        if state.damage:
            trial.write_state(state)
            said.append(f"{trial.id}: {state.damage} Written anew: {state.status}.")
        if state.status == "done" and (done := mend_summary(trial)):
            said.append(f"{trial.id}: {done}")
    return said


def refuse_edited(study: StudyDir, trials: Iterable[TrialDir]) -> None:
    """Before an attempt is spent: code behind import paths that is not what was planned.

    Raises:
        StudyError: naming the arms and the remedy.
    """
    arms = {entry["id"]: entry["arm"] for entry in study.manifest().get("trials", [])}
    seen: dict[str, list[str]] = {}
    for trial in trials:
        arm = arms.get(trial.id, trial.id)
        if arm not in seen:
            seen[arm] = edited(trial.config())
    changed = {arm: variants for arm, variants in seen.items() if variants}
    if not changed:
        return
    said = "; ".join(f"{arm}: {', '.join(variants)}" for arm, variants in changed.items())
    replace = " ".join(f"--replace {shlex.quote(arm)}" for arm in changed)
    raise StudyError(
        f"The code behind an import path was edited after {study.name} was planned ({said}), so "
        f"nothing was run. Undo the edit, or plan the arm anew: ablate extend {study.word} "
        f"{replace}"
    )


def reopen(trial: TrialDir) -> str:
    """Makes the trial pending or preempted again; how it ended stays with its old attempt.

    Returns:
        `from step 100`, or `from the start`.
    """
    unmark(trial)
    state = trial.live_state()
    if state.status == "running":
        raise TrialHeldError(f"Trial {trial.id} is running again already.")
    if state.status in AFRESH:
        trial.set_aside()
        return "from the start"
    found = trial.newest_checkpoint()
    if state.status not in ("pending", "preempted"):
        trial.write_state(
            state.replace(
                status="preempted" if found else "pending",
                outcome=None,
                reason=f"to be run again; it was {state.status}"
                + (f": {state.reason}" if state.reason else ""),
                ended=None,
            )
        )
    return f"from step {found[1]}" if found else "from the start"
