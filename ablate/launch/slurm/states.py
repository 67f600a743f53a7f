"""SLURM's words for the state of a job, and the code by which a task of ours speaks to it."""

from __future__ import annotations

__all__ = ["HELD", "IN_QUEUE", "NOT_NOW", "RUNS", "UNFINISHED", "WAITS"]

RUNS = frozenset(
    [
        "RUNNING",
        "COMPLETING",
        "CONFIGURING",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
    ]
)
"""It has nodes."""

HELD = frozenset(["REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"])
"""It waits, and does not start until somebody releases it."""

WAITS = HELD | {"PENDING", "REQUEUED", "REQUEUE_FED"}

UNFINISHED = RUNS | WAITS
"""SLURM has not finished with it."""

IN_QUEUE = WAITS | {"CONFIGURING"}
"""What people call queued: its process has not started."""

NOT_NOW = 75
"""Exit code of a task that did not bring its trials to their end, and will not start again by
itself (EX_TEMPFAIL): held back, or run elsewhere.
"""
