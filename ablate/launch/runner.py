"""What trains a trial, imported at once: torch alone makes a million objects."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["RUNNER", "load_runner"]

RUNNER = "ablate.train:run_trial"


def load_runner(name: str = RUNNER) -> Callable[..., Any]:
    """The function `module:name`.

    What an import makes lives as long as the process. The collector would look through all of it
    again and again while it grows (a fifth of the time that torch takes), and once more at the end.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        module, _, function = name.partition(":")
        return getattr(importlib.import_module(module), function)
    finally:
        gc.freeze()
        if collects:
            gc.enable()
