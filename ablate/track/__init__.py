"""Trackers mirror a trial's local files, which are the truth. Training never waits for them.

A tracker that cannot start, hangs or refuses is noted in the trial's log, and that is all.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ablate.rundir import Attempt

__all__ = ["Tracker", "start_tracker"]

log = logging.getLogger(__name__)


class Tracker(Protocol):
    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None:
        """Called once before training; returns at once."""

    def finish(self) -> None:
        """Called once when training is over, however it ended; returns within seconds."""


class Local:
    """The local files alone."""

    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None: ...

    def finish(self) -> None: ...


def make_tracker(name: str) -> Tracker:
    if name == "wandb":
        from ablate.track.wandb_mirror import WandbMirror

        return WandbMirror()
    return Local()


@contextlib.contextmanager
def start_tracker(attempt: Attempt, config: Mapping[str, Any]) -> Iterator[None]:
    """The configured tracker, while the trial trains."""
    tracker = make_tracker(config.get("track", {}).get("name", "local"))
    try:
        tracker.start(attempt, config)
    except Exception as error:
        log.warning("The tracker could not start: %s", error)
        tracker = Local()
    try:
        yield
    finally:
        try:
            tracker.finish()
        except Exception as error:
            log.warning("The tracker could not finish: %s", error)
