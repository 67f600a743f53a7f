"""The most memory that a trial held: of its GPU, or on a CPU of its process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

__all__ = ["begin", "peak"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin(device: torch.device) -> None:
    """Forgets the peak of what this process did before (other trials, imports)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # Linux, and not everywhere there
        _RESET.write_text("5", encoding="ascii")


def peak(device: torch.device) -> int | None:
    """Bytes since `begin`: tensors on a GPU; the whole process, its libraries included, on a CPU.
    None where nobody knows.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = _STATUS.read_text(encoding="utf-8")
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
    return None
