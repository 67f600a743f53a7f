"""The attempts of an ended trial as one record: metrics.parquet and events.jsonl."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ablate.rundir import Attempt, TrialDir, write_atomic
from ablate.rundir.names import EVENTS

__all__ = ["stitch", "write_table"]


def stitch(trial: TrialDir, by: Attempt | None = None) -> None:
    """Writes both files, each atomically; done again it writes the same. Nothing is written where
    attempt `by` is no longer the newest: its rows need not be those that count.
    """
    table = to_table(trial.stitched())
    temporary = trial.metrics_path.with_name(f".metrics.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        write_table(table, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())  # as the state that says done: nobody would write it again
        lines = [json.dumps(row, separators=(",", ":")) for row in trial.stitched(EVENTS)]
        if by is not None and not by.is_current():
            return
        os.replace(temporary, trial.metrics_path)
        write_atomic(trial.events_path, "".join(line + "\n" for line in lines))
    finally:
        temporary.unlink(missing_ok=True)


def write_table(table: Any, path: Path) -> None:
    """One file of numbers, byte by byte (all first bytes, then all second ones, ...), in LZ4.

    Of 10,000 rows of nine columns, beside Zstandard with dictionaries: two thirds of the size, read
    in half of the time and written in a quarter (docs/performance.md).
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    split = [f.name for f in table.schema if pa.types.is_floating(f.type) or _is_wide(f.type)]
    options: dict[str, Any] = {"use_byte_stream_split": split} if split else {}
    options["use_dictionary"] = [f.name for f in table.schema if f.name not in split]
    parquet.write_table(table, path, compression="lz4", write_statistics=False, **options)


def _is_wide(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_int64(kind) or pa.types.is_int32(kind))


def to_table(rows: Iterable[dict[str, Any]]) -> Any:
    """An Arrow table with one column a key in the order of appearance; what a row lacks is null."""
    import pyarrow as pa

    rows = list(rows)
    columns = dict.fromkeys(key for row in rows for key in row)
    arrays = {}
    for key in columns:
        values = [row.get(key) for row in rows]
        if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            arrays[key] = _numbers(values, pa.int64())
        elif all(v is None or isinstance(v, int | float) for v in values):
            arrays[key] = _numbers(values, pa.float64())
        else:
            arrays[key] = pa.array(values)
    if not arrays:
        arrays = {"step": _numbers([], pa.int64())}
    return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))


def _numbers(values: Sequence[float | None], kind: Any) -> Any:
    """An Arrow array, made of its buffers: `pa.array` would import pandas first (some 2 s)."""
    import pyarrow as pa

    held = np.array([0 if v is None else v for v in values], dtype=kind.to_pandas_dtype())
    there = np.array([v is not None for v in values], dtype=bool)
    validity = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(held), [validity, pa.py_buffer(held)])
