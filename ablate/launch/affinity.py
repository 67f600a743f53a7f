"""Which CPU cores each of the trials of one allocation has: equal shares that do not overlap.

Only where the cores are known to be ours. On a machine that nobody divides, two launches would both
begin with its first core, and one would wait for the other.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

__all__ = ["confined_cores", "share"]


def share(cores: Collection[int], taken: Collection[int], trials: int, places: int) -> list[int]:
    """The next cores for a process.

    Args:
        cores: of all processes together.
        taken: those that other processes have.
        trials: that the process trains.
        places: trials that there may be at once, in all processes.

    Returns:
        Neighbouring ones, where others leave them; none where they do not suffice for everybody.
    """
    n, free = len(cores) * trials // places, sorted(set(cores) - set(taken))
    return free[:n] if n <= len(free) else []


def confined_cores(environment: Mapping[str, str]) -> list[int]:
    """Those of this SLURM task, where SLURM confines it to as many as it was given; else none."""
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    if not hasattr(os, "sched_getaffinity") or not given.isdecimal():
        return []
    mine = sorted(os.sched_getaffinity(0))
    return mine if len(mine) == int(given) else []
