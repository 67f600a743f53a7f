"""Processes of this machine: which it is, whether they live, whether they stand still."""

from __future__ import annotations

import functools
import os
from pathlib import Path

__all__ = ["is_stopped", "machine", "process_started"]


def process_started(pid: int) -> str | None:
    """When process `pid` of this machine started (clock ticks since boot), None if it is gone.

    The start time tells a process from a later one that got the same number.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else fields[19]


def is_stopped(pid: int) -> bool:
    """Whether it stands still (SIGSTOP, a suspended job)."""
    fields = _stat(pid)
    return fields is not None and fields[0] in "Tt"


def _stat(pid: int) -> list[str] | None:
    """State, parent, ...: the fields of /proc/<pid>/stat after the name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


@functools.cache
def machine() -> str | None:
    """Tells machines and containers with one host name apart: process numbers mean something
    within one of them only.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
