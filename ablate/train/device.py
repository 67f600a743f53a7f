"""The device of a trial, and what is drawn on it."""

from __future__ import annotations

import hashlib

import torch

from ablate.errors import ConfigError

__all__ = ["choose_device", "seed_step", "wait"]


def choose_device(name: str) -> torch.device:
    """Raises ConfigError for a GPU that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        reason = f"this machine has {torch.cuda.device_count()} CUDA devices"
        raise ConfigError("train.device", name, reason, "Use train.device=auto or cpu")
    return device


def seed_step(seed: int, step: int, device: torch.device, rank: int = 0) -> None:
    """Seeds dropout from (seed, step), so that a resumed trial draws what it would have drawn.

    Every process of a trial draws its own.

    torch.manual_seed does it for every kind of device that there is, in 400 us instead of 5.
    """
    place = f"{seed}/{step}/{rank}" if rank else f"{seed}/{step}"
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    value = int.from_bytes(digest, "big") >> 1
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def wait(device: torch.device) -> None:
    """Until it has computed all that was queued: before a clock on the host is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
