"""What every test stands on."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell gives this to what it starts in the background, and children inherit it: then no
    # test of Ctrl-C could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_of_its_own() -> Iterator[None]:
    """What a test sets up of Python's logging ends with it.

    A task of a job configures logging for its process. Run within a test's, that handler would
    hold the test's captured standard error, and fail in every later test that logs.
    """
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)
    root.setLevel(level)
