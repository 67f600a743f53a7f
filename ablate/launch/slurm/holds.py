"""Jobs that SLURM holds although nobody asked for it: their start failed on a broken node.

SLURM drains the node and keeps the job until somebody releases it, which its owner may.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ablate.launch.slurm.scheduler import JobInfo, run_slurm
from ablate.launch.slurm.states import WAITS

__all__ = ["Holds"]

log = logging.getLogger("ablate")


class Holds:
    """Releases each such hold once; those of a user or an administrator are left alone."""

    def __init__(self) -> None:
        self._released: set[tuple[str, int]] = set()

    def release(self, jobs: Iterable[JobInfo]) -> list[str]:
        """The jobs that were released."""
        held = [j for j in jobs if j.state in WAITS and _start_failed(j.reason)]
        new = {(j.job_id, j.restarts) for j in held} - self._released
        ids = sorted(id for id, _ in new)
        if ids and run_slurm(["scontrol", "release", *ids]) is not None:
            log.warning("released after a failed start: %s", ", ".join(ids))
            self._released |= new
        return ids


def _start_failed(reason: str | None) -> bool:
    """`launch failed requeued held`, with spaces or underscores."""
    return "launch failed" in (reason or "").replace("_", " ").lower()
