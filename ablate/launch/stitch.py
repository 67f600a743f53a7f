"""The attempts of an ended trial as one record: metrics.parquet and events.jsonl."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ablate.rundir import TrialDir, write_atomic
from ablate.rundir.names import EVENTS

__all__ = ["stitch"]


def stitch(trial: TrialDir) -> None:
    """Writes both files, each atomically; done again it writes the same."""
    import pyarrow.parquet as parquet

    table = to_table(trial.stitched())
    temporary = trial.metrics_path.with_name(f".metrics.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        parquet.write_table(table, temporary, compression="zstd")
        os.replace(temporary, trial.metrics_path)
    finally:
        temporary.unlink(missing_ok=True)
    lines = (json.dumps(row, separators=(",", ":")) for row in trial.stitched(EVENTS))
    write_atomic(trial.events_path, "".join(line + "\n" for line in lines))


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
