"""Signals to a wish to stop: the first one at the next step with a checkpoint, the second one at
once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

__all__ = ["SIGNALS", "Stop", "heard", "note_signals"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""From the keyboard, from whoever ends a process politely, and from SLURM before the time limit."""

ECHO_SECONDS = 1.0
"""A second signal so soon is an echo of the first (sent to a process and to its group), not
impatience.
"""


_early: list[int] = []


def note_signals() -> None:
    """From the start of a process on: a signal that comes before anybody listens is not lost, and
    does no harm.
    """
    for number in SIGNALS:
        signal.signal(number, lambda received, _: _early.append(received))


def heard() -> str | None:
    """The signal that came while nobody listened."""
    return _told(_early[0]) if _early else None


def _told(number: int) -> str:
    return f"stopped by {signal.Signals(number).name}"


class Stop:
    """Set by a signal, or by the death of the parent process.

    Before the first step there is nothing to save, so a signal interrupts at once.

    Args:
        parent: its death is a wish to stop.
        patient: whether further signals are echoes, however late: SLURM warns, and warns again,
            and then it kills.
        above: of the process, where this is of one of several trials in it.
    """

    def __init__(
        self, parent: int | None = None, patient: bool = False, above: Stop | None = None
    ) -> None:
        self.reason = heard()
        self.stepping = False
        """Whether training has reached its steps."""
        self.finishing = False
        """Whether training is over: the record is being written, which nothing interrupts."""
        self._parent, self._patient, self._above = parent, patient, above
        self._first: float | None = None

    def asked(self) -> str | None:
        """Why to stop, or None."""
        if self.reason is None and self._parent is not None and os.getppid() != self._parent:
            self.reason = "the launcher is gone"
        if self.reason is None and self._above is not None:
            self.reason = self._above.asked()
        return self.reason

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handles SIGNALS meanwhile; outside the main thread, where Python cannot, does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.reason = self.reason or _told(number)
        late = self._first is not None and now - self._first > ECHO_SECONDS
        again = late and not self._patient
        self._first = now if self._first is None else self._first
        if not self.finishing and (again or not self.stepping):
            raise KeyboardInterrupt
