"""What runs one trial, wherever it runs: lease, heartbeat, signals, log, outcome, record.

The training itself is `ablate.train.run_trial`; it knows nothing of states and signals.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ablate.config.fingerprint import fingerprint
from ablate.config.sources import edited
from ablate.errors import StudyError, TrialEndedError, TrialHeldError
from ablate.launch import admission, budget
from ablate.launch.attempt_log import logged
from ablate.launch.outcome import classify, reason_of
from ablate.launch.processes import FENCED_OFF, team_of
from ablate.launch.runner import load_runner
from ablate.launch.slurm.identity import this_job
from ablate.launch.stitch import stitch
from ablate.launch.stop import Stop
from ablate.rundir import Attempt, State, StudyDir, TrialDir, write_summary
from ablate.track import Tracking

if TYPE_CHECKING:
    from ablate.train.parallel import Team

__all__ = ["LEFT", "NOT_OURS", "FencedOffError", "Ran", "run_job"]

log = logging.getLogger("ablate")

BEAT_SECONDS = 2.0
"""The lease and state.json are renewed this often."""
BUDGET_BEATS = 5
"""Every so many beats the budget is looked at."""


LEFT = "its reader has left"
"""Why a trial stops whose progress went into a pipe that is closed (`ablate train | head`)."""


class Ran(Protocol):
    """What `ablate.train.run_trial` returns."""

    @property
    def status(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def reason(self) -> str | None: ...


class FencedOffError(Exception):
    """A newer attempt runs this trial, so this one must not go on."""


NOT_OURS = (TrialHeldError, TrialEndedError, FencedOffError)
"""What `run_job` raises where another runs the trial, or has."""


def run_job(
    trial: TrialDir,
    *,
    again: Collection[str] = (),
    job_id: str | None = None,
    parent: int | None = None,
    own_streams: bool = False,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    run: Callable[..., Ran] | None = None,
    stop: Stop | None = None,
    seats: Sequence[str] = (),
) -> State:
    """Runs the trial as its next attempt, to its end or until it is told to stop.

    Args:
        trial: written by `TrialDir.create`.
        again: ended statuses that are to be run again, such as "failed".
        job_id: the scheduler's number; None: as the environment says.
        parent: a process whose death stops the trial.
        own_streams: whether standard output and error go to the attempt's log from now on
            (a worker's), or stay as they are.
        on_row: sees every row of metrics.
        run: in place of `ablate.train.run_trial`.
        stop: hears of a wish to stop; None: as this process is told.
        seats: ids of the stack whose members share this process; the attempt keeps them.

    Returns:
        The state as it was left: done, diverged, failed, cancelled or preempted.

    Raises:
        TrialHeldError, TrialEndedError: where there is nothing for us to run.
        FencedOffError: where a newer attempt took over; nothing was written outside our folder.
    """
    team, slurm = team_of(trial), this_job()
    stop = stop or Stop(parent, patient=slurm is not None)
    with stop.listening():
        attempt = trial.acquire(
            again=again,
            job_id=job_id or (slurm and slurm.job_id),
            **(slurm.record() if slurm else {}),
            **({"seats": list(seats)} if seats else {}),
        )
        tracking, status = Tracking(attempt), "fenced_off"
        with logged(attempt, own_streams):
            try:
                with Heartbeat(attempt) as heart:
                    end = admission.refusal(attempt)
                    if end is None:
                        end = _outcome(attempt, heart, stop, tracking, on_row, run, team)
                        if end["status"] == "preempted" and trial.cancel_asked():
                            # Whatever stopped it: the signal that follows the mark is faster than
                            # the heartbeat that sees it.
                            end |= admission.CANCELLED
                stop.finishing = True
                state = heart.state.replace(**end, heartbeat=time.time(), ended=time.time())
                if not attempt.release(state):
                    raise FencedOffError(f"Attempt {attempt.number} of {trial.id} was fenced off.")
                status = state.status
            finally:
                tracking.finish(status)
    return trial.state()


def _outcome(
    attempt: Attempt,
    heart: Heartbeat,
    stop: Stop,
    tracking: Tracking,
    on_row: Callable[[dict[str, Any]], None] | None,
    run: Callable[..., Ran] | None,
    team: Team | None,
) -> dict[str, Any]:
    """The fields of the state that say how the attempt ended; the record is written by then."""

    def should_stop() -> str | None:
        stop.stepping = True
        reason = "cancelled" if heart.cancelled else heart.spent or stop.asked()
        reason = FENCED_OFF if heart.fenced_off else reason
        reason = reason if team is None else team.agree(reason)
        if reason == FENCED_OFF:
            raise FencedOffError
        return reason

    def see(row: dict[str, Any]) -> None:
        heart.step = row["step"]
        try:
            if on_row is not None:
                on_row(row)
        except BrokenPipeError:  # as every program that nobody reads any more, but saved
            stop.reason = stop.reason or LEFT
        except OSError:
            pass  # a terminal that is gone, a log on a full disk: training does not notice

    try:
        if stop.asked():  # before it listened
            raise KeyboardInterrupt
        config = _checked_config(attempt.trial)
        heart.state = heart.state.replace(steps=config["train"]["steps"])
        tracking.start(config)
        if team is not None:
            team.start(attempt, config)
        result = (run or load_runner())(attempt, config, should_stop=should_stop, on_row=see)
        stop.finishing = True
        if not attempt.is_current():
            raise FencedOffError
        if result.status != "done":
            return _ended("preempted", "preempted", result.reason, result.step)
        stitch(attempt.trial, attempt)
        if not write_summary(attempt, result.summary):
            raise FencedOffError
        return _ended("done", "done", None, result.step)
    except FencedOffError:
        log.warning("A newer attempt runs this trial; this one stops.")
        raise
    except KeyboardInterrupt:
        stop.finishing = True
        reason = f"{stop.reason or 'interrupted'}, before it could save"
        if team is not None:
            team.report("preempted", reason)
        return _ended("preempted", "preempted", reason, None)
    except Exception as caught:
        stop.finishing = True
        error = caught if team is None else team.explain(caught)
        outcome = classify(error)
        log.error("%s\n%s", reason_of(error), traceback.format_exc())
        if team is not None and outcome != "diverged":
            team.report(outcome, reason_of(error))
        with contextlib.suppress(Exception):  # a full disk must not hide why the trial failed
            if attempt.is_current():
                stitch(attempt.trial, attempt)
        status = outcome if outcome in ("diverged", "preempted") else "failed"
        if outcome == "node" and this_job() is not None:
            status = "preempted"  # SLURM starts it again, within the budget of `admission`
        admission.note(attempt, outcome, error)
        return _ended(status, outcome, reason_of(error), getattr(error, "step", None))


def _ended(status: str, outcome: str, reason: str | None, step: int | None) -> dict[str, Any]:
    end: dict[str, Any] = {"status": status, "outcome": outcome, "reason": reason}
    return end if step is None else {**end, "step": step}


def _checked_config(trial: TrialDir) -> dict[str, Any]:
    """What was frozen is what runs: config.yaml must still have the fingerprint of the trial's
    name.
    """
    config = trial.config()
    if not trial.id.endswith(fingerprint(config)[:8]):
        raise StudyError(
            f"{trial.path / 'config.yaml'} was changed after the trial was made (its fingerprint "
            f"is {fingerprint(config)[:8]} now). Undo the change; another configuration is "
            "another trial."
        )
    if variants := edited(config):
        raise StudyError(
            f"{', '.join(variants)}: the code that it names was edited after trial {trial.id} was "
            "planned. Undo the edit, or plan the code as it is now: `ablate train` makes another "
            "trial of it, and `ablate launch` takes another study=NAME."
        )
    return config


class Heartbeat:
    """A thread that renews the lease and state.json while the attempt runs, and sees when it is
    fenced off.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.state = attempt.trial.state()
        newest = attempt.trial.latest_row()
        self.step = int(newest["step"]) if newest else 0
        self.fenced_off = self.cancelled = False
        self.spent: str | None = None
        """Why the study's budget does not let it go on."""
        self._over = threading.Event()
        name = f"{threading.current_thread().name}/heartbeat"  # see `attempt_log`
        self._thread = threading.Thread(target=self._beat, name=name, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.state = self.state.replace(step=self.step)

    def _beat(self) -> None:
        study, beats = StudyDir(self.attempt.trial.study_path), 0
        while not self._over.wait(BEAT_SECONDS):
            beats += 1
            # A moment's trouble with the disk is no reason to stop; the lease outlives many beats.
            with contextlib.suppress(OSError):
                if not self.attempt.is_current():
                    self.fenced_off = True
                    return
                self.attempt.heartbeat()
                self.cancelled = self.cancelled or self.attempt.trial.cancel_asked()
                self.attempt.release(self.state.replace(step=self.step, heartbeat=time.time()))
                if beats % BUDGET_BEATS == 1 and self.spent is None:
                    self.spent = budget.exhausted(study)
