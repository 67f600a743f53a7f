"""summary.json and its seal: the attempt that wrote it keeps a digest, so that an edit shows, and
a copy, so that it can be written anew.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from ablate.errors import StudyError
from ablate.rundir import names
from ablate.rundir.attempt_record import read_record
from ablate.rundir.files import free_name, fsync_dir, read_json, write_atomic, write_json

if TYPE_CHECKING:
    from ablate.rundir.attempt import Attempt
    from ablate.rundir.trial import TrialDir

__all__ = [
    "FROM_LAST_ROW",
    "SEAL",
    "before_last_tenth",
    "digest",
    "mend_summary",
    "summary_damage",
    "write_summary",
]

SEAL = "summary"
"""Key of attempt.json."""
FROM_LAST_ROW = ("val/", "robust/")
"""How metrics begin that are those of the record's last row."""
FROM_ARM = ("parameters", "flops_per_token")


def before_last_tenth(steps: int) -> int:
    """The step after which `train/loss` is averaged."""
    return steps - max(1, steps // 10)


def write_summary(attempt: Attempt, values: dict[str, Any]) -> bool:
    """With its seal, and so that no power cut takes either (or the record that was written before)
    once the state says done: a rename in another folder may reach the disk sooner.

    Returns:
        Whether it is the trial's: where a newer attempt has taken over, only the copy in the
        attempt's own folder is written.
    """
    path, own = attempt.trial.summary_path, attempt.path / names.SUMMARY
    write_json(own, values)
    attempt.note(**{SEAL: digest(own.read_bytes())})
    fsync_dir(attempt.path)
    if not attempt.is_current():
        return False
    write_json(path, values)
    fsync_dir(path.parent)
    if attempt.is_current():
        return True
    newest = attempt.trial.newest_attempt()  # which may have written its own just before
    text = None if newest is None else _copy(newest)
    if text is not None:
        write_atomic(path, text)
    return False


def summary_damage(trial: TrialDir) -> str | None:
    """What is wrong with the summary of a trial that is done; None for one that older versions
    wrote, which has no seal, as for one that is whole.
    """
    newest, path = trial.newest_attempt(), trial.summary_path
    retry = f"{names.retry_of(trial.study_path)} writes it anew."
    if newest is not None and not path.exists():
        return f"{path} is missing, though the trial is done; its record counts. {retry}"
    try:
        seal = read_record(newest.path).get(SEAL) if newest is not None else None
        now = digest(path.read_bytes()) if seal else None
    except (StudyError, OSError) as error:
        return f"{path} cannot be checked ({error})."
    if seal == now:
        return None
    return f"{path} was changed after the trial had written it. {retry}"


def mend_summary(trial: TrialDir) -> str | None:
    """Writes a damaged summary of a trial that is done anew: as the attempt wrote it, or, where
    there is no copy, with what the record tells. The old one stays beside it.

    Returns:
        What was done; None where nothing was wrong.
    """
    damage, newest = _damage(trial), trial.newest_attempt()
    if damage is None or newest is None:
        return None
    text, how = _copy(newest), "it was written anew, as the attempt had it"
    if text is None:
        values, how = _from_record(trial), "what the record tells was written anew"
        if values is None:
            return f"{damage} Its record is gone too, so nothing was done."
        write_json(newest.path / names.SUMMARY, values)
        text = (newest.path / names.SUMMARY).read_text(encoding="utf-8")
    path, kept = trial.summary_path, free_name(trial.path / f"{names.SUMMARY}.damaged")
    if old := path.exists():
        os.rename(path, kept)
    write_atomic(path, text)
    newest.note(**{SEAL: digest(path.read_bytes())})
    return f"{damage} That was done: {how}." + (f" The old file: {kept.name}." if old else "")


def _damage(trial: TrialDir) -> str | None:
    try:
        trial.summary()
    except StudyError as error:
        return str(error)
    return summary_damage(trial)


def _copy(attempt: Attempt) -> str | None:
    """The attempt's own, where it is whole."""
    path = attempt.path / names.SUMMARY
    try:
        read_json(path)
        seal = attempt.record().get(SEAL)
        whole = seal in (None, digest(path.read_bytes()))
        return path.read_text(encoding="utf-8") if whole else None
    except (StudyError, OSError):
        return None


def _from_record(trial: TrialDir) -> dict[str, Any] | None:
    """The metrics of the last row, the mean loss of the last tenth, the time that it took, and
    what the plan says of the arm.
    """
    rows, steps = [_numbers(row) for row in trial.stitched()], trial.state().steps
    loss = "train/loss"
    last = [r[loss] for r in rows if r["step"] > before_last_tenth(steps) and loss in r]
    if not last:
        return None
    values = {k: v for k, v in rows[-1].items() if k.startswith(FROM_LAST_ROW)}
    values |= {loss: sum(last) / len(last), "steps": steps}
    if rows[-1].get("tokens") and rows[-1]["step"]:
        values["tokens"] = tokens = rows[-1]["tokens"]
        speeds = [r.get("tokens_per_second") for r in rows]
        if all(speeds):
            seconds = sum(tokens / rows[-1]["step"] / s for s in speeds)
            values |= {"seconds": seconds, "tokens_per_second": tokens / seconds}
    return {**values, **_planned(trial), "rebuilt": True}


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if isinstance(v, int | float)}


def _planned(trial: TrialDir) -> dict[str, Any]:
    try:
        manifest = read_json(trial.study_path / names.MANIFEST)
    except StudyError:
        return {}
    arm = next((t.get("arm") for t in manifest.get("trials", []) if t.get("id") == trial.id), None)
    facts = next((a for a in manifest.get("arms", []) if a.get("name") == arm), {})
    return {k: facts[k] for k in FROM_ARM if facts.get(k) is not None}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
