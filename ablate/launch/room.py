"""Whether a trial fits this machine, by the formula of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.errors import ConfigError, PlanError
from ablate.launch.ranks import rank_of
from ablate.plan import gib, memory_of, too_large
from ablate.train import host

__all__ = ["check_fits", "check_fits_here", "gpus_here", "too_large_here"]


def check_fits(
    config: Mapping[str, Any], device: str, bytes_there: int, who: str = "The trial"
) -> None:
    """By the formula of the plan, for this machine.

    Args:
        config: of the trial.
        device: its kind; only cuda and cpu are known.
        bytes_there: of memory.
        who: needs it.

    Raises:
        PlanError: for what needs more.
    """
    if said := _too_large(config, device, bytes_there):
        raise PlanError(f"{who} {said}")


def check_fits_here(config: Mapping[str, Any], who: str = "The trial") -> None:
    """`check_fits` for the device that the configuration names or `auto` would take here."""
    if said := too_large_here(config):
        raise PlanError(f"{who} {said}")


def too_large_here(config: Mapping[str, Any]) -> str | None:
    """What is to be said of a trial that does not fit this machine, after its name; None where it
    fits, where it is to run on SLURM, or where its device is not known or not there.
    """
    if config["cluster"]["name"] == "slurm":
        return None
    found = _device_of(config["train"]["device"])
    return None if found is None else _too_large(config, *found)


def _too_large(config: Mapping[str, Any], device: str, bytes_there: int) -> str | None:
    if device not in ("cuda", "cpu"):
        return None
    memory = memory_of(config, processes=rank_of().world_size, device=device)
    if memory.peak <= bytes_there:
        return None
    where = f"{'this GPU' if device == 'cuda' else 'this machine'} has {gib(bytes_there)}"
    return too_large(config, memory, bytes_there, where)


def gpus_here(config: Mapping[str, Any]) -> int:
    """GPUs over which a launch on this machine spreads its trials."""
    if config["train"]["device"] not in ("auto", "cuda") or not _may_have_gpus():
        return 0
    import torch

    return torch.cuda.device_count()


def _may_have_gpus() -> bool:
    return any(Path(p).exists() for p in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))


def _device_of(name: str) -> tuple[str, int] | None:
    """Its kind and bytes of memory. Torch is asked only where there may be a GPU: importing it
    takes longer than a plan.
    """
    if name != "cpu" and _may_have_gpus():
        from ablate.train.device import choose_device
        from ablate.train.memory import device_memory

        try:
            device = choose_device(name)
        except ConfigError:  # is refused by whoever asks for the device itself
            return None
        return device.type, device_memory(device)
    return ("cpu", host.host_memory()) if name in ("auto", "cpu") else None
