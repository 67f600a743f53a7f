"""Old checkpoints, by a rule that never takes away what a trial resumes from.

A trial that runs is left alone. One that may go on (pending, preempted, failed, cancelled) keeps
its newest checkpoint, and one before it in case that is damaged. One that is over (done, diverged)
keeps its newest. Debris of writers that were killed goes, and so do checkpoints of attempts set
aside, and the columns that earlier versions kept of large studies.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ablate.errors import StudyError
from ablate.rundir import StudyDir, TrialDir
from ablate.rundir.names import ATTEMPTS, CHECKPOINTS, checkpoint_step

__all__ = ["Old", "delete", "old_checkpoints"]

OVER = ("done", "diverged")
CACHE = ".cache"
"""Beside the manifest: a folder of columns for each state of the study."""
_KEY, _COLUMN = re.compile(r"[0-9a-f]{24}"), re.compile(r"(index\.json|[0-9a-f]{16})(\.\w+)*")
SPARE = 2
"""Checkpoints that a trial keeps which may go on."""


@dataclass(frozen=True, kw_only=True)
class Old:
    study: Path
    trial: TrialDir | None
    """Whose checkpoint it is; None of columns, which are the study's."""
    path: Path
    bytes: int


def old_checkpoints(study: StudyDir, keep: int = 1) -> Iterator[Old]:
    """What may go.

    Args:
        study: whose.
        keep: checkpoints that a trial keeps which is over; 0: none (its record and its summary
            stay, but no weights).
    """
    for trial in study.trials():
        for path in _old(trial, keep):
            yield Old(study=study.path, trial=trial, path=path, bytes=size_of(path))
    for path in _columns(study.path):
        yield Old(study=study.path, trial=None, path=path, bytes=size_of(path))


def delete(old: Old, keep: int = 1) -> bool:
    """Whether it was deleted: not where the trial runs by now, or may need it after all."""
    if old.path not in (_old(old.trial, keep) if old.trial else _columns(old.study)):
        return False
    doomed = old.path.with_name(f".{old.path.name.lstrip('.')}.pruned")
    try:
        os.rename(old.path, doomed)  # complete or absent, also while it is being deleted
    except FileNotFoundError:
        return False
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def size_of(path: Path) -> int:
    """Bytes of all files below."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, files in os.walk(path)
        for name in files
    )


def _old(trial: TrialDir, keep: int) -> list[Path]:
    try:
        state = trial.live_state()
    except StudyError:
        return []  # whatever it is, it is not ours to judge
    status = state.status
    if status == "running" or state.damage:
        return []
    keep = keep if status in OVER else max(keep, SPARE)
    complete: list[Path] = []
    debris: list[Path] = []
    for attempt in trial.attempts():
        complete += [attempt.checkpoint_path(step) for step in attempt.checkpoint_steps()]
        debris += _hidden(attempt.checkpoints_path)
    aside = [
        folder
        for checkpoints in trial.path.glob(f"aside-*/{ATTEMPTS}/*/{CHECKPOINTS}")
        for folder in checkpoints.iterdir()
        if checkpoint_step(folder.name) is not None or folder.name.startswith(".")
    ]
    return (complete[:-keep] if keep else complete) + debris + aside


def _columns(study: Path) -> list[Path]:
    """Nothing where anything lies in the folder that those versions did not write."""
    folder = study / CACHE
    try:
        keys = [] if folder.is_symlink() else list(folder.iterdir())
        files = [file for key in keys for file in key.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    ours = all(_KEY.fullmatch(key.name) for key in keys)
    return [folder] if keys and ours and all(_COLUMN.fullmatch(f.name) for f in files) else []


def _hidden(folder: Path) -> list[Path]:
    try:
        return [p for p in folder.iterdir() if p.name.startswith(".step-") and p.is_dir()]
    except FileNotFoundError:
        return []
