"""Processes that are forked before their work is known, and told it through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ablate.launch.stop import SIGNALS

__all__ = ["CRASHED", "RAN", "Child", "become_child", "exit_with"]

RAN, CRASHED = 0, 1


@dataclass
class Child:
    """A process that was forked for a trial, or for the members of a stack."""

    pid: int
    order: int
    """A pipe by which it is told its trials, closed then: at its end, the child ends."""
    told: int
    """A pipe by which it tells their codes."""
    trials: list[str] = field(default_factory=list)
    """Of which it has not told."""
    on_gpu: bool = False

    @classmethod
    def fork(cls, close: int, run: Callable[[dict[str, Any]], list[int]]) -> Child:
        """A child that waits.

        Args:
            close: a descriptor that is none of its business.
            run: runs the trials of a request, and returns the code of each.
        """
        orders, order = os.pipe()
        told, tell = os.pipe()
        os.set_blocking(told, False)  # what the child starts may hold on to the other end
        pid = os.fork()
        if pid == 0:
            os.close(order)
            os.close(told)
            become_child(close)
            exit_with(lambda: _obey(orders, tell, run))
        os.close(orders)
        os.close(tell)
        return cls(pid, order, told)

    def start(self, request: dict[str, Any]) -> None:
        self.trials, self.on_gpu = request["trials"], request.get("gpu") is not None
        with contextlib.suppress(BrokenPipeError), os.fdopen(self.order, "wb") as file:
            file.write(json.dumps(request).encode())

    def codes(self) -> list[int]:
        """What it has told; empty where it came to no end of its own. To be asked once."""
        with os.fdopen(self.told, "rb", buffering=0) as file:
            return list(file.read(4096) or b"")

    def is_gone(self) -> bool:
        """Of one that waits: whether it was killed, for want of memory, say."""
        gone = os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        if gone:
            os.close(self.order)
            os.close(self.told)
        return gone

    def dismiss(self) -> None:
        """Ends one that waits."""
        os.close(self.order)
        os.close(self.told)
        os.waitpid(self.pid, 0)


def _obey(orders: int, tell: int, run: Callable[[dict[str, Any]], list[int]]) -> int:
    """Nothing is asked of it where the warm process has no more trials, or is gone."""
    text = b""
    with contextlib.suppress(KeyboardInterrupt), os.fdopen(orders, "rb") as file:
        text = file.read()
    if text:
        os.write(tell, bytes(run(json.loads(text))))
    return RAN


def become_child(close: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, *SIGNALS):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.close(close)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def exit_with(action: Callable[[], int]) -> None:
    """Never returns: what the parent would have done next is none of the child's business."""
    code = CRASHED
    try:
        code = action()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
