"""Batches ahead of the loop: while the device computes a step, the next batches are made.

A batch is a pure function of its number, so it does not matter who makes it, or when: where the
loop asks for another number than was foreseen (a response to a spike replaced a batch), it gets
that one, and what was made in vain is dropped.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from ablate.train.batch import TensorBatch, stage
from ablate.train.run import Run

__all__ = ["Loader"]

AHEAD = 2
"""So many, where a device computes beside the host. On a CPU a trial has one core, which cannot
make one batch while it computes another."""


class Loader:
    """Hands out the batch of each step, on the device.

    With `ahead` a thread makes so many batches in advance, on a GPU in pinned memory, from which
    the device fetches them by itself. Without, each is made when it is asked for.

    Args:
        run: whose batches they are.
        ahead: None: as suits the device.
    """

    def __init__(self, run: Run, ahead: int | None = None) -> None:
        self._run, self._pinned = run, run.device.type == "cuda"
        self._ahead = AHEAD * self._pinned if ahead is None else ahead
        # Named after the trial's own thread, so that what it logs goes to the trial's log.
        name = f"{threading.current_thread().name}/loader"
        self._thread = ThreadPoolExecutor(1, name) if self._ahead else None
        self._made: dict[int, Future[TensorBatch]] = {}

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Ends the thread; what it was making is dropped."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def take(self, step: int) -> TensorBatch:
        """The batch of `step`. Raises what making it raised, at the step that it belongs to."""
        run = self._run
        if self._thread is None:
            staged = stage(run.next_batch(step), self._pinned)
        else:
            staged = self._staged(step, self._thread)
        return staged.to(run.device).counted(run.parallel.count)

    def _staged(self, step: int, thread: ThreadPoolExecutor) -> TensorBatch:
        run = self._run
        last = min(step + self._ahead, run.config.train.steps)
        wanted = [run.response.batch(s) for s in range(step, last + 1)]
        for number in self._made.keys() - set(wanted):
            self._made.pop(number).cancel()
        for number in wanted:
            if number not in self._made:
                self._made[number] = thread.submit(self._make, number)
        return self._made.pop(wanted[0]).result()

    def _make(self, number: int) -> TensorBatch:
        return stage(self._run.make_batch(number), self._pinned)
