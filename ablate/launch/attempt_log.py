"""What Python logs and warns, to the log of the attempt that it is about.

Of several trials in one process each has a thread; a thread that a trial starts has a name that
begins with that of the trial's own thread and "/", and its lines belong to that trial.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator

from ablate.rundir import Attempt

__all__ = ["logged", "logging_of_process", "member_name"]

log = logging.getLogger("ablate")

MEMBER = "member "


def member_name(trial: str) -> str:
    """Of the thread of one of several trials in this process."""
    return MEMBER + trial


@contextlib.contextmanager
def logging_of_process() -> Iterator[None]:
    """Lets information and warnings through; once around all trials of the process, for the first
    to end must not silence the others.
    """
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(min(level, logging.INFO))
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)


@contextlib.contextmanager
def logged(attempt: Attempt, own_streams: bool) -> Iterator[None]:
    """What Python logs and warns goes to the attempt's log; with `own_streams`, so does all else
    that is printed.

    In the thread of one of several trials (`member_name`), within `logging_of_process`: that of
    the other trials does not, and what belongs to none goes to all.
    """
    handler: logging.Handler
    if own_streams:
        fd = os.open(attempt.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        handler = logging.StreamHandler()
    else:
        handler = logging.FileHandler(attempt.log_path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    own = _trial_of(threading.current_thread().name)
    if own is not None:
        handler.addFilter(_but_of_others(own))
    root = logging.getLogger()
    with logging_of_process() if own is None else contextlib.nullcontext():
        root.addHandler(handler)
        try:
            log.info("attempt %s of %s, process %s", attempt.number, attempt.trial.id, os.getpid())
            yield
        finally:
            root.removeHandler(handler)
            handler.close()


def _but_of_others(own: str) -> Callable[[logging.LogRecord], bool]:
    return lambda record: _trial_of(record.threadName) in (own, None)


def _trial_of(thread: str | None) -> str | None:
    """The thread of the trial that a thread belongs to, by its name; None: to the process."""
    name = (thread or "").partition("/")[0]
    return name if name.startswith(MEMBER) else None
