"""Work whose result is a file, done beside the rest: in a forked child, on another core."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["beside"]


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Does `work` while the block runs, and has done it when the block ends.

    The child sees memory as it is now, and what it changes there is lost. Where there is one core,
    no fork, or the child fails, the work is done here after the block, and its error is shown.
    """
    child = _fork(work) if _cores() > 1 else None
    try:
        yield
    except BaseException:
        if child is not None:
            os.waitpid(child, 0)
        raise
    if child is None or os.waitpid(child, 0)[1] != 0:
        work()


def _cores() -> int:
    if not hasattr(os, "sched_getaffinity") or not hasattr(os, "fork"):
        return 1  # macOS has a fork, and libraries that do not survive it
    return len(os.sched_getaffinity(0))


def _fork(work: Callable[[], object]) -> int | None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        child = os.fork()
    except OSError:  # no memory or no room for another process
        return None
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is to be ended, flushed or reported twice
