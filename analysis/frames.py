"""Studies on disk to tidy frames: one row a trial, one row a step, one row an event.

The schema is documented in docs/analysis.md. Reading imports neither torch nor hydra.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ablate.analysis.cached import LEAST_ROWS, Cache, cache_of
from ablate.analysis.columns import Columns, read_columns
from ablate.analysis.damage import add_damage, check_against_record
from ablate.analysis.reading import KEYS, flatten, read_index
from ablate.analysis.recorded import Curve, read_curve
from ablate.errors import StudyError
from ablate.rundir import ENDED, StudyDir
from ablate.spikes.order import with_batches

__all__ = ["KEYS", "Frames", "flatten", "load"]

_TRIAL_COLUMNS = [
    *KEYS, "lr", "reference", "status", "outcome", "reason", "step", "steps", "attempt",
    "fingerprint", "parameters", "flops_per_token", "source", "damage",
]  # fmt: skip
_THREADS = 4


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
    lengths: list[int]
    columns: dict[str, np.ndarray]
    """Of the curves, all trials one after another."""


def load(
    path: str | Path | Sequence[str | Path],
    *,
    curves: bool = True,
    columns: Iterable[str] | None = None,
    batches: bool = False,
    later: list[Callable[[], None]] | None = None,
) -> Frames:
    """Reads one or several studies.

    Args:
        path: a study's folder, or several.
        curves: whether to read the curves and events at all.
        columns: the metrics of the curves that are read (`step` always is); None: all that were
            recorded.
        batches: also what was in the batches of the events: opens each trial's data.
        later: takes what is still to do (writing the columns of a large study to `.cache/`), to
            be called before the frames are changed; None: it is done at once.

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
        read[study.name], keep = _read(study, manifest, wanted if curves else [])
        if keep is not None and later is not None:
            later.append(keep)
        elif keep is not None:
            keep()
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


def _read(
    study: StudyDir, manifest: Mapping[str, Any], wanted: list[str] | None
) -> tuple[_Study, Callable[[], None] | None]:
    """A study, and what keeps it for the next time where that pays."""
    entries = manifest.get("trials", [])
    cache = cache_of(study, (e["id"] for e in entries))
    index = cache.index() if cache else None
    early: Future[Columns | None] | None = None
    if index is None:
        with ThreadPoolExecutor(1) as beside:
            if cache is not None and wanted != []:
                paths = [study.trial(e["id"]).metrics_path for e in entries]
                early = beside.submit(read_columns, paths, wanted, KEYS)
            index = read_index(study, manifest)
        if not all(row["status"] in ENDED for row in index["rows"]):
            cache = early = None
    made = _Study(
        rows=index["rows"],
        configs=index["configs"],
        events=index["events"],
        lengths=[0] * len(entries),
        columns={},
    )
    if wanted == []:
        return made, None
    kept, missing = _kept(index, wanted, cache)
    if missing == []:
        made.lengths, made.columns = index["lengths"], kept
        check_against_record(made.rows, made.lengths, made.columns)
        return made, None
    at_once = early.result() if early else None
    if at_once is not None:
        made.lengths, names, read = at_once
    else:
        curves = _curves(study, index["rows"], missing)
        made.lengths = [c.table.num_rows for c in curves]
        names = list(dict.fromkeys(n for c in curves for n in c.names))
        tables = [c.table for c in curves]
        del curves
        read = _columns(tables)
    both = kept | read
    made.columns = {n: both[n] for n in names if n in both}
    check_against_record(made.rows, made.lengths, made.columns)
    if cache is None or sum(made.lengths) < LEAST_ROWS:
        return made, None
    whole = index | {"lengths": made.lengths, "columns": names}
    return made, lambda: cache.write(None if "lengths" in index else whole, read)


def _kept(
    index: Mapping[str, Any], wanted: list[str] | None, cache: Cache | None
) -> tuple[dict[str, np.ndarray], list[str] | None]:
    """Columns that the cache holds, and those that are still to be read (None: all)."""
    if not cache or "lengths" not in index:
        return {}, wanted
    names = [n for n in index["columns"] if wanted is None or n in wanted]
    found = {n: cache.column(n) for n in names}
    kept = {n: c for n, c in found.items() if c is not None}
    return kept, [n for n in names if n not in kept]


def _curves(
    study: StudyDir, rows: Sequence[dict[str, Any]], wanted: Collection[str] | None
) -> list[Curve]:
    def one(row: dict[str, Any]) -> Curve:
        ended = row["status"] in ENDED
        try:
            return read_curve(study.trial(row["id"]), ended=ended, wanted=wanted)
        except StudyError as error:
            add_damage(row, str(error))
            return Curve(pa.table({}), [])

    if len(rows) < _THREADS:
        return [one(row) for row in rows]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(one, rows))


def _columns(tables: list[pa.Table]) -> dict[str, np.ndarray]:
    """One array a column, NaN where a trial has none. Empties the list: nothing is held twice."""
    try:  # whole numbers in some trials and fractions in others become fractions
        joined = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # text in some trials
        names = dict.fromkeys(n for t in tables for n in t.column_names)
        return {n: np.concatenate([_numpy(t, n) for t in tables]) for n in names}
    tables.clear()
    columns = {}
    for name in joined.column_names:
        columns[name] = joined.column(name).to_numpy()
        joined = joined.drop_columns([name])
    return columns


def _numpy(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    return table.column(name).to_numpy()


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
    """One frame; the trials' names are categories, so that ten million rows stay small."""
    rows = [row for s in studies for row in s.rows]
    lengths = [n for s in studies for n in s.lengths]
    if not sum(lengths):
        return pd.DataFrame(columns=[*KEYS, "step"])
    with_rows = [row for row, n in zip(rows, lengths, strict=True) if n]
    front: dict[str, Any] = {}
    for key in ("study", "id", "arm"):
        names = sorted({row[key] for row in with_rows})
        number = {name: i for i, name in enumerate(names)}
        small = np.min_scalar_type(-len(names))
        codes = np.repeat(np.array([number.get(r[key], -1) for r in rows], dtype=small), lengths)
        front[key] = pd.Categorical.from_codes(codes, categories=names)
    front["seed"] = np.repeat(np.array([row["seed"] for row in rows], dtype=np.int64), lengths)
    if len(studies) == 1:
        return pd.DataFrame(front | studies[0].columns, copy=False)
    for name in dict.fromkeys(n for s in studies for n in s.columns):
        front[name] = np.concatenate(
            [s.columns.get(name, np.full(sum(s.lengths), np.nan)) for s in studies]
        )
    return pd.DataFrame(front, copy=False)


def _frame(rows: list[dict[str, Any]], first: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame.from_records(rows)
    rest = [c for c in frame.columns if c not in first]
    frame = frame.reindex(columns=[*first, *rest])
    if "lr" in frame:
        frame["lr"] = frame["lr"].astype(float)
    return frame
