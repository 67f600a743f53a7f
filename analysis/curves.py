"""The curves of a study: of large ones, what is alike at once, and the rest trial by trial."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from ablate.analysis.columns import Room, decode, reserve, touch
from ablate.analysis.damage import add_damage
from ablate.analysis.reading import KEYS
from ablate.analysis.recorded import Curve, read_curve
from ablate.errors import StudyError
from ablate.rundir import ENDED, StudyDir
from ablate.rundir.names import STITCHED, TRIALS

__all__ = ["Curves", "Prepared", "key_columns", "prepare", "read_curves"]

_LEAST_TRIALS = 50
"""Fewer are read as quickly one by one."""
_THREADS = 4


class Curves(NamedTuple):
    lengths: list[int]
    """Rows of each trial."""
    keys: dict[str, Any]
    """Columns of names and seeds."""
    columns: dict[str, np.ndarray]
    """Of all trials, one after another; NaN where a trial has none."""


class Prepared(NamedTuple):
    """What can be made before the small files are read."""

    room: Room
    keys: dict[str, Any]
    """As for curves that are all alike."""


def prepare(
    study: StudyDir,
    entries: Sequence[Mapping[str, Any]],
    wanted: Collection[str] | None,
    enough: threading.Event,
) -> Prepared | None:
    """Room for the curves of a large study, and their keys; to be done beside other work.

    Args:
        study: the folder.
        entries: of the manifest, one a trial.
        wanted: columns; None: all.
        enough: set when that work is done.
    """
    if len(entries) < _LEAST_TRIALS:
        return None
    room = reserve([f"{study.path}/{TRIALS}/{e['id']}/{STITCHED}" for e in entries], wanted, KEYS)
    if room is None or not room.rows or not room.arrays:
        return None
    name = study.name
    named = [{"study": name, "seed": 0, **entry} for entry in entries]
    keys = key_columns(named, [room.rows] * len(entries))
    touch(room, enough)
    return Prepared(room, keys)


def read_curves(
    study: StudyDir,
    rows: Sequence[dict[str, Any]],
    wanted: Collection[str] | None,
    prepared: Prepared | None,
) -> Curves:
    """Of all trials; what is damaged is noted in its row."""
    alike: set[int] = set()
    if prepared is not None:
        ended = [i for i, row in enumerate(rows) if row["status"] in ENDED]
        alike = decode(prepared.room, ended)
        if len(alike) == len(rows):
            lengths = [prepared.room.rows] * len(rows)
            return Curves(lengths, prepared.keys, prepared.room.arrays)
    others = [i for i in range(len(rows)) if i not in alike]
    curves = dict(zip(others, _one_by_one(study, [rows[i] for i in others], wanted), strict=True))
    lengths, names, tables = [], {}, []
    for at_once, group in groupby(range(len(rows)), alike.__contains__):
        numbers = list(group)
        if at_once and prepared is not None:
            n = prepared.room.rows
            lengths += [n] * len(numbers)
            names |= dict.fromkeys(prepared.room.names)
            place = slice(numbers[0] * n, (numbers[-1] + 1) * n)
            arrays = {k: v[place] for k, v in prepared.room.arrays.items()}
            tables.append(pa.table(arrays))
            continue
        for curve in map(curves.pop, numbers):
            lengths.append(curve.table.num_rows)
            names |= dict.fromkeys(curve.names)
            tables.append(curve.table)
    columns = _columns(tables)
    kept = {n: columns[n] for n in names if n in columns}
    return Curves(lengths, key_columns(rows, lengths), kept)


def _one_by_one(
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


def key_columns(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> dict[str, Any]:
    """The trials' keys, row by row of their curves; names are categories, so that ten million rows
    stay small.
    """
    with_rows = [row for row, n in zip(rows, lengths, strict=True) if n]
    keys: dict[str, Any] = {}
    for key in ("study", "id", "arm"):
        names = sorted({row[key] for row in with_rows})
        number = {name: i for i, name in enumerate(names)}
        small = np.min_scalar_type(-max(1, len(names)))
        codes = np.array([number.get(row[key], -1) for row in rows], small)
        keys[key] = pd.Categorical.from_codes(_repeat(codes, lengths), categories=names)
    seeds = np.array([row["seed"] for row in rows], dtype=np.int64)
    return keys | {"seed": _repeat(seeds, lengths)}


def _repeat(values: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    if len(set(lengths)) != 1:
        return np.repeat(values, lengths)
    made = np.empty((len(values), lengths[0]), values.dtype)
    made[:] = values[:, None]  # unlike `repeat`, this lets other threads run
    return made.reshape(-1)
