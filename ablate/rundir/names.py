"""Names and numbers of the on-disk contract."""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import Path

from ablate.errors import ConfigError

SCHEMA_VERSION = 1

MANIFEST = "manifest.json"
TRIALS = "trials"
REPORT = "report"
DATA = "data.json"
CONFIG = "config.yaml"
STATE = "state.json"
SUMMARY = "summary.json"
ATTEMPTS = "attempts"
ATTEMPT = "attempt.json"
LEASE = "lease"
METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
STITCHED = "metrics.parquet"
LOG = "log"
CHECKPOINTS = "checkpoints"
SUBMISSIONS = "submissions"
SOURCE = "source"
CANCEL = "cancel"
HELD = "held.json"
NODES = "nodes"
FAILURES = "failures"


def _lease_seconds(least: float = 6.0, usual: float = 60.0) -> float:
    name, reason = "ABLATE_LEASE_SECONDS", "is no number of seconds"
    text = os.environ.get(name) or usual
    try:
        if math.isfinite(seconds := float(text)):
            return max(least, seconds)
    except ValueError:
        pass
    raise ConfigError(name, text, reason, f"Unset it ({usual:g} seconds), or give it a number")


LEASE_SECONDS = _lease_seconds()
"""A lease that was not touched for so long has expired (unless its process is known to be alive
or dead).
"""

AHEAD_SECONDS = 86_400.0
"""A lease or a lock that lies so far in the future was left by a clock that was wrong, and has been
put right since: whoever lives renews it. One that lies less far ahead may be right, and our clock
wrong: `Attempt.redate` asks that of the files.
"""

LOCK_SECONDS = 30.0
"""A manifest is written within milliseconds; a lock so old is a dead owner's."""

_CHECKPOINT = re.compile(r"step-(\d{6,})")


def word_of(folder: Path) -> str:
    """A study's name as a shell takes it: for commands that are shown."""
    return shlex.quote(folder.name)


def retry_of(folder: Path) -> str:
    """What mends files of a study."""
    return f"`ablate retry {word_of(folder)}`"


def checkpoint_name(step: int) -> str:
    return f"step-{step:06d}"


def checkpoint_step(name: str) -> int | None:
    """The step of a complete checkpoint's folder name, or None for anything else (half-written
    ones).
    """
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None
