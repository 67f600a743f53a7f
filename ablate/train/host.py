"""The memory of this machine, without torch."""

from __future__ import annotations

import os

__all__ = ["host_memory"]


def host_memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process is held to."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
