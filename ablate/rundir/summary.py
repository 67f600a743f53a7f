"""summary.json and its seal: the attempt that wrote it keeps a digest, so that an edit shows."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ablate.errors import StudyError
from ablate.rundir import names
from ablate.rundir.attempt_record import read_record
from ablate.rundir.files import fsync_dir, write_json

if TYPE_CHECKING:
    from ablate.rundir.attempt import Attempt
    from ablate.rundir.trial import TrialDir

__all__ = ["SEAL", "digest", "summary_damage", "write_summary"]

SEAL = "summary"
"""Key of attempt.json."""


def write_summary(attempt: Attempt, values: dict[str, Any]) -> None:
    """With its seal, and so that no power cut takes either (or the record that was written before)
    once the state says done: a rename in another folder may reach the disk sooner.
    """
    path = attempt.trial.summary_path
    write_json(path, values)
    attempt.note(**{SEAL: digest(path.read_bytes())})
    fsync_dir(path.parent)
    fsync_dir(attempt.path)


def summary_damage(trial: TrialDir) -> str | None:
    """What is wrong with the summary of a trial that is done; None for one that older versions
    wrote, which has no seal, as for one that is whole.
    """
    newest = trial.newest_attempt()
    try:
        seal = read_record(newest.path).get(SEAL) if newest is not None else None
        now = digest(trial.summary_path.read_bytes()) if seal else None
    except (StudyError, OSError) as error:
        return f"{trial.path / names.SUMMARY} cannot be checked ({error})."
    if seal is None and newest is not None and not trial.summary_path.exists():
        return f"{trial.summary_path} is missing, though the trial is done; its record counts."
    if seal == now:
        return None
    return f"{trial.summary_path} was changed after the trial had written it."


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
