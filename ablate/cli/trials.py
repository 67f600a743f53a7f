"""How a user names a trial: a folder, STUDY/TRIAL, or any part of its id that is unique."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablate.config.typed import closest
from ablate.errors import StudyError
from ablate.rundir import StudyDir, TrialDir, find_study
from ablate.rundir.names import CONFIG, TRIALS

__all__ = ["find_trial", "pick_trial", "pick_trials"]


def find_trial(word: str, runs_dir: str) -> TrialDir:
    """Raises StudyError where the word fits no trial, or several."""
    if (Path(word) / CONFIG).exists():
        return TrialDir(Path(word))
    study, _, id = word.rpartition("/")
    study = study.removesuffix(f"/{TRIALS}")
    if not study:
        raise StudyError(f"{word!r} names no trial: write STUDY/TRIAL, or the folder of a trial.")
    return pick_trial(find_study(study, runs_dir), id)


def pick_trials(study: StudyDir, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ids of the trials that the words name one by one, and of those of whole arms."""
    entries = study.manifest().get("trials", [])
    arms = {t["arm"] for t in entries} - {t["id"] for t in entries}
    of_arms = [t["id"] for t in entries if t["arm"] in words]
    named = [pick_trial(study, word).id for word in words if word not in arms]
    return named, [id for id in of_arms if id not in named]


def pick_trial(study: StudyDir, word: str) -> TrialDir:
    """The trial of that id, or the only one whose id contains `word`."""
    if not word.strip():  # an unset variable of a script; it is part of every id
        raise StudyError(f"{word!r} names no trial of {study.name}. Write its id, or a part of it.")
    ids = [t["id"] for t in study.manifest().get("trials", [])]
    found = [id for id in ids if id == word] or [id for id in ids if word in id]
    if len(found) == 1:
        return study.trial(found[0])
    if not found:
        hint = closest(word, ids) or f"`ablate status {study.word}` lists them"
        raise StudyError(f"The study {study.name} has no trial {word!r}. {hint}")
    shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
    raise StudyError(f"{word!r} fits {len(found)} trials of {study.name}: {shown}. Write more.")
