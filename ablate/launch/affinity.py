"""Which CPU cores each of the trials of one allocation has: equal shares that do not overlap.

Only where the cores are known to be ours. On a machine that nobody divides, two launches would both
begin with its first core, and one would wait for the other.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

__all__ = ["confined_cores", "shares"]


def shares(cores: Collection[int], trials: int) -> list[list[int]]:
    """Neighbouring cores for each; none where they do not suffice for one each."""
    each = len(cores) // trials
    ordered = sorted(cores)
    return [ordered[i * each : (i + 1) * each] for i in range(trials if each else 0)]


def confined_cores(environment: Mapping[str, str]) -> list[int]:
    """Those of this SLURM task, where SLURM confines it to as many as it was given; else none."""
    given = environment.get("SLURM_CPUS_PER_TASK", "")
    if not hasattr(os, "sched_getaffinity") or not given.isdecimal():
        return []
    mine = sorted(os.sched_getaffinity(0))
    return mine if len(mine) == int(given) else []
