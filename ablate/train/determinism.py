"""The settings of torch under which a trial comes to the same bits each time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["deterministic"]

_LOCK = threading.Lock()
_within = 0
_before: tuple[int, int, bool] = (1, 0, True)


@contextlib.contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """So many threads, and kernels that keep their order of summation.

    The settings are the process's, and the members of a stack are within at the same time: the last
    to leave puts back what the first has found.
    """
    _enter(threads)
    try:
        yield
    finally:
        _leave()


def _enter(threads: int) -> None:
    global _within, _before
    flags: Any = torch.utils.deterministic
    with _LOCK:
        if _within == 0:
            mode = torch.get_deterministic_debug_mode()
            _before = (torch.get_num_threads(), mode, flags.fill_uninitialized_memory)
        _within += 1
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by cuBLAS
        torch.set_num_threads(threads)  # in part a setting of this thread of the process
        # The same as use_deterministic_algorithms, which imports the compiler too (2 s).
        torch.set_deterministic_debug_mode("warn")
        flags.fill_uninitialized_memory = False  # a debugging aid that costs time


def _leave() -> None:
    global _within
    flags: Any = torch.utils.deterministic
    with _LOCK:
        _within -= 1
        if _within == 0:
            threads, mode, fill = _before
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(mode)
            flags.fill_uninitialized_memory = fill
