"""Checkpoints: complete or absent, read back with plain tensors only, and never trusted blindly.

    step-000100/model.pt    the model's state dict, under upstream's names
    step-000100/train.pt    step, optimiser, gradient scaler, clip state

or, where the weights were divided among processes, pieces of the model and the optimiser in
DCP's files (see `ablate.train.shards`), and in train.pt the rest, with their checksums.

No random state is stored: dropout at step t is seeded from (seed, t), and so is the batch.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ablate.rundir import Attempt, TrialDir

__all__ = [
    "Checkpoint", "candidates", "drop_weights", "load_model_state", "names_of", "prune", "read",
    "read_newest", "read_train", "save", "skipped", "write_train",
]  # fmt: skip

log = logging.getLogger(__name__)

MODEL, TRAIN = "model.pt", "train.pt"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    attempt: int
    step: int
    model: dict[str, Any] | None
    """None where only the fact is kept that the last step was done (keep_final=false), or where
    the pieces are left to be read by several processes.
    """
    train: dict[str, Any]


def save(
    attempt: Attempt,
    step: int,
    *,
    model: dict[str, Any] | None,
    train: dict[str, Any],
    before_commit: Callable[[], None] = lambda: None,
) -> Path:
    """Writes both files aside, then renames their folder into place."""
    folder = attempt.begin_checkpoint(step)
    if model is not None:
        torch.save(model, folder / MODEL)
    write_train(folder, step, train, has_model=model is not None)
    before_commit()
    return attempt.commit_checkpoint(step)


def write_train(folder: Path, step: int, train: dict[str, Any], *, has_model: bool = True) -> None:
    torch.save({**train, "step": step, "has_model": has_model}, folder / TRAIN)


def drop_weights(attempt: Attempt, step: int) -> None:
    """Leaves the fact alone that the step was done; killed at any line, the weights or the fact."""
    folder = attempt.checkpoint_path(step)
    aside = folder / f".{TRAIN}.tmp"
    torch.save({"step": step, "has_model": False}, aside)
    os.replace(aside, folder / TRAIN)
    for file in folder.iterdir():
        if file.name != TRAIN:
            file.unlink()


def prune(attempt: Attempt, keep: int) -> None:
    """Keeps the newest `keep` checkpoints of the trial (-1: all), and no debris of old attempts.

    What a newer attempt wrote is not ours to touch, nor what it may be reading: this one may have
    been fenced off meanwhile.
    """
    if not attempt.is_current():
        return
    earlier = [a for a in attempt.trial.attempts() if a.number < attempt.number]
    for old in earlier:
        for debris in old.checkpoints_path.glob(".step-*.tmp"):
            shutil.rmtree(debris, ignore_errors=True)
    if keep < 0:
        return
    attempt.prune_checkpoints(keep)
    left = keep - len(attempt.checkpoint_steps())
    for old in reversed(earlier):
        old.prune_checkpoints(max(left, 0))
        left -= len(old.checkpoint_steps())


def read_newest(
    trial: TrialDir,
    device: torch.device,
    on_unreadable: Callable[[int, int, str], None] | None = None,
    *,
    before: int | None = None,
) -> Checkpoint | None:
    """The newest checkpoint that can be read; damaged ones are skipped with a warning.

    Args:
        trial: of which every attempt is looked at.
        device: where the tensors go.
        on_unreadable: told attempt, step and reason of what is skipped.
        before: a step; only checkpoints of earlier ones are taken.
    """
    for attempt, step in candidates(trial, before):
        try:
            return read(attempt.checkpoint_path(step), attempt.number, step, device)
        except torch.OutOfMemoryError:
            raise  # the file is sound, the device is full
        except Exception as error:  # garbage makes the unpickler raise anything at all
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            skipped(attempt.checkpoint_path(step), reason)
            if on_unreadable is not None:
                on_unreadable(attempt.number, step, reason)
    return None


def skipped(folder: Path, reason: str) -> None:
    log.warning("Checkpoint %s cannot be read and is skipped (%s).", folder, reason)


def read(folder: Path, attempt: int, step: int, device: torch.device) -> Checkpoint:
    """The checkpoint in a folder, whole; raises anything at all where it is damaged."""
    train = read_train(folder, step, device)
    if "shards" in train:
        model = _join_pieces(folder, train, device)
    else:
        model = _read(folder / MODEL, device) if train["has_model"] else None
    return Checkpoint(attempt=attempt, step=step, model=model, train=train)


def read_train(folder: Path, step: int, device: torch.device | str = "cpu") -> dict[str, Any]:
    """All but the model; of a checkpoint in pieces, all but the tensors."""
    train = _read(folder / TRAIN, device)
    if train["step"] != step:
        raise ValueError(f"it says step {train['step']}")
    return train


def _join_pieces(folder: Path, train: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The model of a checkpoint in pieces; the optimiser's go where one process has them."""
    from ablate.train import shards

    shards.check_sums(folder, train["shards"], sorted(train["shards"]))
    model: dict[str, Any] = {}
    ids = {name: id for id, name in names_of(train["optimiser"]).items()}
    for full, value in shards.read_whole(folder, device).items():
        kind, _, name = full.partition("/")
        if kind == shards.MODEL:
            model[name] = value
        else:
            parameter, _, key = name.rpartition("/")
            train["optimiser"]["state"].setdefault(ids[parameter], {})[key] = value
    return model


def names_of(optimiser: dict[str, Any]) -> dict[int, str]:
    """Number of a parameter in an optimiser's state dict -> its name."""
    groups = optimiser["param_groups"]
    return {i: n for g in groups for i, n in zip(g["params"], g["param_names"], strict=True)}


def load_model_state(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state dict of a checkpoint's model."""
    if (folder / MODEL).exists():
        return _read(folder / MODEL, device)
    train = _read(folder / TRAIN, "cpu")
    return _join_pieces(folder, train, torch.device(device))


def candidates(trial: TrialDir, before: int | None = None) -> Iterator[tuple[Attempt, int]]:
    """Attempt and step of every checkpoint, the newest first."""
    for attempt in reversed(trial.attempts()):
        for step in reversed(attempt.checkpoint_steps()):
            if before is None or step < before:
                yield attempt, step


def _read(path: Path, device: torch.device | str) -> dict[str, Any]:
    if os.path.getsize(path) == 0:
        raise EOFError(f"{path.name} is empty")
    return torch.load(path, map_location=device, weights_only=True)
