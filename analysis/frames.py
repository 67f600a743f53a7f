"""Studies on disk to tidy frames: one row a trial, one row a step, one row an event.

The schema is documented in docs/analysis.md. Reading imports neither torch nor hydra.
"""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.curves import Curves, key_columns, prepare, read_curves
from ablate.analysis.damage import check_against_record
from ablate.analysis.reading import KEYS, flatten, read_index
from ablate.errors import StudyError
from ablate.rundir import StudyDir
from ablate.spikes.order import with_batches

__all__ = ["KEYS", "Frames", "flatten", "load"]

_TRIAL_COLUMNS = [
    *KEYS, "lr", "reference", "status", "outcome", "reason", "step", "steps", "attempt",
    "fingerprint", "parameters", "flops_per_token", "source", "damage",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Frames:
    """What was recorded, tidy.

    `trials` has one row a trial, `curves` one row a trial and step, `events` one row an event.
    `configs` holds each trial's flat configuration by (study, id), `manifests` each study's
    manifest by name.
    """

    trials: pd.DataFrame
    curves: pd.DataFrame
    events: pd.DataFrame
    configs: Mapping[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    manifests: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def study(self, name: str) -> Frames:
        """Only what belongs to one study."""
        pick = lambda frame: frame[frame["study"] == name].reset_index(drop=True)  # noqa: E731
        return Frames(
            trials=pick(self.trials),
            curves=pick(self.curves),
            events=pick(self.events),
            configs={k: v for k, v in self.configs.items() if k[0] == name},
            manifests={name: self.manifests[name]} if name in self.manifests else {},
        )


@dataclass(kw_only=True)
class _Study:
    """What was read of one study."""

    rows: list[dict[str, Any]]
    configs: list[dict[str, Any]]
    events: list[list[dict[str, Any]]]
    curves: Curves


def load(
    path: str | Path | Sequence[str | Path],
    *,
    curves: bool = True,
    columns: Iterable[str] | None = None,
    batches: bool = False,
) -> Frames:
    """Reads one or several studies.

    Args:
        path: a study's folder, or several.
        curves: whether to read the curves and events at all.
        columns: the metrics of the curves that are read (`step` always is); None: all that were
            recorded.
        batches: also what was in the batches of the events: opens each trial's data.

    Raises:
        StudyError: where a folder is not a study. What is wrong with a single trial stands in the
            column `damage`.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    wanted = None if columns is None else ["step", *(c for c in columns if c != "step")]
    read: dict[str, _Study] = {}
    manifests: dict[str, dict[str, Any]] = {}
    folders: dict[str, StudyDir] = {}
    for study in map(StudyDir, map(Path, paths)):
        if study.name in manifests:
            raise StudyError(
                f"Two of the studies are called {study.name}: rename one of the folders, or "
                f"report one."
            )
        folders[study.name] = study
        manifests[study.name] = manifest = study.manifest()
        with _without_collection():
            read[study.name] = _read(study, manifest, wanted if curves else [])
    studies = list(read.values())
    trials = [row for s in studies for row in s.rows]
    happened = [
        {k: row[k] for k in KEYS} | event
        for s in studies
        for row, events in zip(s.rows, s.events, strict=True)
        for event in (with_batches(events) if curves else ())
    ]
    if batches:
        happened = _with_documents(happened, folders)
    return Frames(
        trials=_frame(trials, _TRIAL_COLUMNS),
        curves=_join(studies),
        events=_frame(happened, [*KEYS, "step", "kind", "batch"]),
        configs={
            (name, row["id"]): config
            for name, s in read.items()
            for row, config in zip(s.rows, s.configs, strict=True)
        },
        manifests=manifests,
    )


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """A thousand configurations are many objects, all of which stay: looking for garbage among them
    again and again takes a fifth of the time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _read(study: StudyDir, manifest: Mapping[str, Any], wanted: list[str] | None) -> _Study:
    if wanted == []:
        index = read_index(study, manifest)
        return _Study(**index, curves=Curves([0] * len(index["rows"]), {}, {}))
    entries, enough = manifest.get("trials", []), threading.Event()
    with ThreadPoolExecutor(1) as beside:
        prepared = beside.submit(prepare, study, entries, wanted, enough)
        try:
            index = read_index(study, manifest)
        finally:
            enough.set()
    curves = read_curves(study, index["rows"], wanted, prepared.result())
    check_against_record(index["rows"], curves.lengths, curves.columns)
    return _Study(**index, curves=curves)


def _with_documents(
    events: list[dict[str, Any]], studies: Mapping[str, StudyDir]
) -> list[dict[str, Any]]:
    """Sequences and documents of each event's batch, as JSON like other nested values."""
    from ablate.data.naming import batches_of

    wanted: dict[tuple[str, str], set[int]] = {}
    for event in events:
        if event.get("batch") is not None:
            wanted.setdefault((event["study"], event["id"]), set()).add(int(event["batch"]))
    named = {
        (study, id): batches_of(studies[study].trial(id).config(), sorted(numbers))
        for (study, id), numbers in wanted.items()
    }
    none: dict[int, dict[str, Any]] = {}
    made = []
    for event in events:
        batch = named.get((event["study"], event["id"]), none).get(event.get("batch", -1))
        known = {} if batch is None else {k: batch[k] for k in ("sequences", "documents")}
        made.append(event | {k: json.dumps(v) for k, v in known.items()})
    return made


def _join(studies: Sequence[_Study]) -> pd.DataFrame:
    """One frame of all curves."""
    read = [s.curves for s in studies if sum(s.curves.lengths)]
    if not read:
        return pd.DataFrame(columns=[*KEYS, "step"])
    if len(read) == 1:
        return pd.DataFrame(read[0].keys | read[0].columns, copy=False)
    lengths = [n for s in studies for n in s.curves.lengths]
    front = key_columns([row for s in studies for row in s.rows], lengths)
    for name in dict.fromkeys(n for curves in read for n in curves.columns):
        front[name] = np.concatenate(
            [c.columns.get(name, np.full(sum(c.lengths), np.nan)) for c in read]
        )
    return pd.DataFrame(front, copy=False)


def _frame(rows: list[dict[str, Any]], first: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(rows)
    rest = [c for c in frame.columns if c not in first]
    frame = frame.reindex(columns=[*first, *rest])
    if "lr" in frame:
        frame["lr"] = frame["lr"].astype(float)
    return frame
