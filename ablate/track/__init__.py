"""Trackers mirror a trial's local files, which are the truth. Training never waits for them.

A tracker that cannot start, hangs or refuses is noted in the trial's log, and that is all.

    wandb_mirror.py   starts and ends the mirror process of a trial
    mirror.py         that process: reads the local files, writes one wandb run
    facts.py          id, group, tags and configuration of that run
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from ablate.rundir import Attempt

__all__ = ["Tracker", "Tracking"]

log = logging.getLogger(__name__)


class Tracker(Protocol):
    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None:
        """Called once before training; returns at once."""

    def finish(self, status: str) -> None:
        """Called once when the trial's state is written; returns within seconds.

        `status` is done, diverged, failed, preempted, or fenced_off: another attempt goes on.
        """


class Local:
    """The local files alone."""

    def start(self, attempt: Attempt, config: Mapping[str, Any]) -> None: ...

    def finish(self, status: str) -> None: ...


class Tracking:
    """The configured tracker of an attempt, whose troubles never reach the training."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tracker: Tracker = Local()

    def start(self, config: Mapping[str, Any]) -> None:
        try:
            tracker = make_tracker((config.get("track") or {}).get("name", "local"))
            tracker.start(self._attempt, config)
            self._tracker = tracker
        except Exception as error:
            log.warning("The tracker could not start: %s", error)

    def finish(self, status: str) -> None:
        try:
            self._tracker.finish(status)
        except Exception as error:
            log.warning("The tracker could not finish: %s", error)


def make_tracker(name: str) -> Tracker:
    if name == "wandb":
        from ablate.track.wandb_mirror import WandbMirror

        return WandbMirror()
    return Local()
