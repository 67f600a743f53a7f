"""A batch that no memory here could hold is refused, before a machine swaps itself to a halt."""

from __future__ import annotations

import os

import torch

from ablate.config.schema import TrainConfig
from ablate.errors import ConfigError

__all__ = ["check_memory"]

TOKEN = 2 * 8
"""Bytes of a token of the whole batch on the host: input and label, both int64."""
LOGIT = 2 * 4
"""Bytes of a logit of what passes through the model at once: itself and its gradient, float32."""


def check_memory(
    train: TrainConfig, *, sequence_length: int, vocab_size: int, device: torch.device
) -> None:
    """A bound from below: what is let through may still be too much.

    Raises:
        ConfigError: for a batch, or a part of it that passes at once, over all the memory there is.
    """
    rows = train.batch_size, min(train.micro_batch_size or train.batch_size, train.batch_size)
    cut = "Or set train.micro_batch_size: parts of a batch pass through the model one by one"
    for count, per_row, total, where, remedy in (
        (rows[0], TOKEN * sequence_length, host_memory(), "this machine", ""),
        (
            rows[1],
            LOGIT * max(sequence_length - 1, 1) * vocab_size,
            device_memory(device),
            "the GPU" if device.type == "cuda" else "this machine",
            cut if train.micro_batch_size is None else "",
        ),
    ):
        if count * per_row > total:
            need = f"{count * per_row / 2**30:,.0f} GiB"
            field = "batch_size" if count == rows[0] else "micro_batch_size"
            raise ConfigError(
                f"train.{field}",
                count,
                f"needs more than {need} of memory, and {where} has {total / 2**30:,.0f} GiB",
                f"At most {total // per_row:,} could fit. {remedy}".strip(),
            )


def host_memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process is held to."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def device_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return host_memory()
