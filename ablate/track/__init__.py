"""Trackers mirror a trial's local files, which are the truth. Training never waits for them.

A tracker that cannot start, hangs or refuses is noted in the trial's log, and that is all.

    wandb_mirror.py   starts and ends the mirror process of a trial
    mirror.py         that process: reads the local files, writes one wandb run
    sync.py           a whole study at any later time (`ablate sync`)
    sending.py        its trials to a server, which is asked at the end what it shows
    copies.py         what was asked of it, and what it did with each trial
    offline.py        offline runs: rebuilt whole, and read back
    remote.py         what a server holds: every row, never a sample
    workspace.py      a saved view that compares the arms
    facts.py          id, group, tags and configuration of a run, and its digest
    client.py         wandb's client: quiet, bounded in time, its errors in one paragraph
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ablate.rundir import Attempt

if TYPE_CHECKING:
    from ablate.track.offline import read_offline, read_offline_runs
    from ablate.track.remote import read_project

__all__ = ["Tracker", "Tracking", "read_offline", "read_offline_runs", "read_project"]

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


_LAZY = {"read_offline": "offline", "read_offline_runs": "offline", "read_project": "remote"}


def __getattr__(name: str) -> Any:
    """The readers, imported when they are wanted: a trial's process needs none of them."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
