"""The records that `ablate spikes` looks at: of a trial, a study, a file, or a wandb folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ablate.cli.trials import pick_trial
from ablate.errors import AblateError, DataError, StudyError
from ablate.rundir import StudyDir, TrialDir, find_study, list_studies
from ablate.rundir.names import CONFIG, EVENTS, MANIFEST
from ablate.spikes import Event, compare, detect
from ablate.spikes.order import number_of
from ablate.spikes.read import Table, from_rows, read_table
from ablate.spikes.signals import of_row

__all__ = ["Records", "find_trial", "name_batches", "open_records", "search"]

FILES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".gz")


@dataclass(frozen=True, kw_only=True)
class Records:
    """Tables by name, which of them saw the same batches, and the trials that they are of;
    trials of which a file is damaged, with what is wrong.
    """

    tables: dict[str, Table]
    groups: list[list[str]] = field(default_factory=list)
    trials: dict[str, TrialDir] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def open_records(word: str, runs_dir: str, step: str | None, loss: str | None) -> Records:
    """What `word` names.

    Raises:
        DataError, StudyError: where it names nothing, or without the columns.
    """
    path = Path(word)
    if path.is_file() and path.suffix.lower() != ".wandb":
        return Records(tables={path.name: read_table(path, step=step, loss=loss)})
    if path.suffix.lower() == ".wandb" or (path.is_dir() and is_wandb(path)):
        folder = path.parent if path.is_file() else path
        return Records(tables={path.name: _offline(folder, step, loss)})
    if (path / CONFIG).exists():
        trial = TrialDir(path.resolve())
        damage = trial.record_damage()
        rows = list(trial.stitched())
        if damage and not rows:
            raise StudyError(damage)
        return Records(
            tables={trial.id: table_of(rows, trial.id, step, loss)},
            trials={trial.id: trial},
            damaged={trial.id: damage} if damage else {},
        )
    if path.is_dir() and not (path / MANIFEST).exists():
        raise DataError(
            f"{path} is neither a trial ({CONFIG}), nor a study ({MANIFEST}), nor an offline run "
            "of wandb (run-*.wandb)."
        )
    if path.suffix.lower() in FILES:
        raise DataError(f"There is no file {path}.")
    known = find_trial(word, runs_dir)
    if known is not None:
        return open_records(str(known.path), runs_dir, step, loss)
    return _study(find_study(word, runs_dir), step, loss)


def is_wandb(folder: Path) -> bool:
    """Whether it is a run's folder of wandb, or holds one."""
    return any(folder.glob("*.wandb")) or any(folder.glob("*run-*/*.wandb"))


def find_trial(word: str, runs_dir: str) -> TrialDir | None:
    """A trial by its folder, as STUDY/TRIAL, or by its id in any study below `runs_dir`.

    Raises:
        StudyError: where the study is there, and has no such trial, or several.
    """
    if (Path(word) / CONFIG).exists():
        return TrialDir(Path(word).resolve())
    study, _, id = word.rpartition("/")
    if study:
        known = any((p / MANIFEST).exists() for p in (Path(study), Path(runs_dir) / study))
        return pick_trial(find_study(study, runs_dir), id) if known and id else None
    if not word:
        return None
    found = [s.trial(word) for s in list_studies(runs_dir)]
    found = [t for t in found if (t.path / CONFIG).exists()]
    if len(found) > 1:
        raise AblateError(f"{word} is a trial of {len(found)} studies; name its folder.")
    return found[0] if found else None


def table_of(
    rows: Sequence[dict[str, Any]], id: str, step: str | None = None, loss: str | None = None
) -> Table:
    """A trial's, with the signals that the detector saw while it ran."""
    table = from_rows(rows, id, step=step, loss=loss)
    kept = [of_row(rows[i]) for i in table.rows.tolist()]
    names = sorted({name for signals in kept for name in signals})
    signals = {n: np.array([s.get(n, np.nan) for s in kept], dtype=np.float64) for n in names}
    return replace(table, signals=signals, said="")


def _offline(folder: Path, step: str | None, loss: str | None) -> Table:
    try:
        from ablate.track import read_offline
    except ImportError:
        raise DataError(
            f"{folder}: reading an offline run needs wandb, which is not installed. Add it with "
            "`pip install wandb`."
        ) from None
    return from_rows(read_offline(folder), str(folder), step=step, loss=loss)


def _study(study: StudyDir, step: str | None, loss: str | None) -> Records:
    records = Records(tables={})
    seeds: dict[Any, list[str]] = {}
    for entry in study.manifest().get("trials", []):
        trial = study.trial(entry["id"])
        if damage := trial.record_damage():  # what can be read of it is shown all the same
            records.damaged[trial.id] = damage
        rows = list(trial.stitched())
        if not rows:
            if damage is None:
                print(f"{entry['id']} has no record yet.", file=sys.stderr)
            continue
        records.tables[trial.id] = table_of(rows, trial.id, step, loss)
        records.trials[trial.id] = trial
        seeds.setdefault(entry.get("seed"), []).append(trial.id)
    if not records.tables and records.damaged:
        named = "; ".join(f"{id}: {said}" for id, said in records.damaged.items())
        raise StudyError(f"No trial of the study {study.name} can be read: {named}")
    if not records.tables:
        raise DataError(f"No trial of the study {study.name} has written a row yet.")
    return replace(records, groups=list(seeds.values()))


def search(records: Records) -> dict[str, list[Event]]:
    """Events of each record; trials of one seed are compared, for the batch is f(seed, step)."""
    tables = records.tables
    found = {n: detect(t.steps, t.losses, **t.signals) for n, t in tables.items()}
    for group in records.groups:
        if len(group) > 1:
            runs = {n: (tables[n].steps, tables[n].losses) for n in group}
            found.update(compare(runs, found).events)
    return found


def name_batches(
    records: Records, found: Mapping[str, Sequence[Event]]
) -> dict[tuple[str, int], dict[str, Any]]:
    """(trial, peak step) -> batch, sequences, documents, text, of what the data caused; notes
    where a trial's files are damaged.
    """
    named: dict[tuple[str, int], dict[str, Any]] = {}
    for name, trial in records.trials.items():
        steps = sorted({e.peak for e in found[name] if e.cause == "data" and e.peak is not None})
        if not steps:
            continue
        try:
            batches = _of_trial(trial, steps)
        except StudyError as error:
            records.damaged[name] = f"its batches cannot be named ({error})"
            continue
        except AblateError as error:
            print(f"{name}: its batches cannot be named ({error})", file=sys.stderr)
            continue
        named |= {(name, step): batch for step, batch in batches.items()}
    return named


def _of_trial(trial: TrialDir, steps: Sequence[int]) -> dict[int, dict[str, Any]]:
    from ablate.data.naming import batches_of

    responses = [e for e in trial.stitched(EVENTS) if e.get("kind") == "response"]
    numbers = {step: number_of(step, responses) for step in steps}
    named = batches_of(trial.config(), numbers.values())
    return {step: named[number] for step, number in numbers.items()}
