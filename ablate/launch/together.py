"""Several trials in one process, trained as one batch of models: a thread for each.

Every one is a job of its own (lease, heartbeat, log, outcome, state), as if it were alone.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ablate.launch.attempt_log import logging_of_process, member_name
from ablate.launch.job import NOT_OURS, run_job
from ablate.launch.runner import load_runner
from ablate.launch.slurm.identity import this_job
from ablate.launch.stacks import Stacks
from ablate.launch.stop import Stop
from ablate.rundir import Attempt, TrialDir

__all__ = ["STACK", "on_its_seat", "run_together"]

STACK = "ablate.train.stacked:Stack"


def run_together(
    trials: Sequence[TrialDir],
    seats: Sequence[str],
    *,
    again: Collection[str] = (),
    parent: int | None = None,
    run: Callable[..., Any],
) -> list[BaseException | None]:
    """Runs trials to their ends, or until they are told to stop.

    Args:
        trials: of the stack, those that are to be run.
        seats: ids of the whole stack, in order.
        again: as for `run_job`.
        parent: as for `run_job`.
        run: what trains a trial, given its `seat`.

    Returns:
        What each raised beside its outcome: held, ended already, fenced off, or a crash.
    """
    stack = load_runner(STACK)(seats)
    stop = Stop(parent, patient=this_job() is not None)
    ends: list[BaseException | None] = [None] * len(trials)
    stop.stepping = True  # a member notices by itself; nothing is to be torn
    taken = [stack.seat(trial.id) for trial in trials]

    def member(i: int) -> None:
        try:
            seated = functools.partial(run, seat=taken[i])
            run_job(trials[i], again=again, run=seated, stop=Stop(above=stop), seats=seats)
        except BaseException as error:
            ends[i] = error
            if not isinstance(error, NOT_OURS):
                traceback.print_exception(error)
        finally:
            taken[i].leave()

    names = [member_name(trial.id) for trial in trials]
    threads = [threading.Thread(target=member, args=(i,), name=n) for i, n in enumerate(names)]
    with stop.listening(), logging_of_process():
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                for thread in threads:
                    thread.join()
            except KeyboardInterrupt:  # asked a second time
                stack.interrupt()
    return ends


def on_its_seat(size: int | None, run: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """What trains a trial that has a process to itself: one that began as a member of a stack keeps
    its seat there, among empty ones, so that it computes what it would have computed.

    Args:
        size: as for `Stacks.of`.
        run: in place of `ablate.train.run_trial`.
    """

    def train(attempt: Attempt, config: dict[str, Any], **arguments: Any) -> Any:
        seats = Stacks.of([attempt.trial], size).seats(attempt.trial)
        if len(seats) > 1:
            arguments["seat"] = load_runner(STACK)(seats).seat(attempt.trial.id)
        return (run or load_runner())(attempt, config, **arguments)

    return train
