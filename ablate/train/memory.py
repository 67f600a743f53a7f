"""A batch that no memory here could hold is refused, before a machine swaps itself to a halt."""

from __future__ import annotations

import torch

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.train import host

__all__ = ["check_memory", "device_memory"]

TOKEN = 2 * 8
"""Bytes of a token of the whole batch on the host: input and label, both int64."""
LOGIT = 2 * 4
"""Bytes of a logit of what passes through the model at once: itself and its gradient, float32."""
HIDDEN = 2
"""Bytes of a component of an embedding, at the least."""


def check_memory(
    config: TrialConfig, *, sequence_length: int, device: torch.device, ranks: int = 1
) -> None:
    """A bound from below: what is let through may still be too much.

    Args:
        config: of the trial.
        sequence_length: of its batches.
        device: on which it trains.
        ranks: processes that share a batch.

    Raises:
        ConfigError: for a batch, or a part of it that passes at once, over all the memory there is.
    """
    c, length = config.train, sequence_length
    per_row = HIDDEN * length * int(config.model["d_model"])
    if not config.loss.chunk:
        per_row = max(per_row, LOGIT * (length - 1) * int(config.model["vocab_size"]))
    _refuse("batch_size", c.batch_size, ranks, TOKEN * length, host.host_memory(), "this machine")
    where = "this GPU" if device.type == "cuda" else "this machine"
    total, part = device_memory(device), c.micro_batch_size
    if part is not None:
        _refuse("micro_batch_size", part, ranks, per_row, total, where)
        return
    cut = "; train.micro_batch_size=... passes a batch through the model in parts"
    _refuse("batch_size", c.batch_size, ranks, per_row, total, where, cut)


def _refuse(
    field: str, rows: int, ranks: int, per_row: int, total: int, where: str, remedy: str = ""
) -> None:
    need = rows // ranks * per_row
    if need > total:
        reason = f"needs more than {need / 2**30:,.0f} GiB of memory, and {where} has"
        most = f"At most {ranks * (total // per_row):,} could fit{remedy}"
        raise ConfigError(f"train.{field}", rows, f"{reason} {total / 2**30:,.0f} GiB", most)


def device_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return host.host_memory()
