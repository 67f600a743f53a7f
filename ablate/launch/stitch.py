"""The attempts of an ended trial as one record: metrics.parquet and events.jsonl."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from typing import Any

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
        whole = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
        number = all(v is None or isinstance(v, int | float) for v in values)
        kind = pa.int64() if whole else pa.float64() if number else None
        arrays[key] = pa.array(values, type=kind, from_pandas=False)
    if not arrays:
        arrays = {"step": pa.array([], type=pa.int64())}
    return pa.table(arrays)
