"""One trial's curve: metrics.parquet where it is there and final, else the logs of its attempts."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from ablate.errors import StudyError
from ablate.rundir import TrialDir
from ablate.rundir.names import METRICS

__all__ = ["Curve", "read_curve"]

_KEYS = {"study", "id", "arm", "seed"}
"""Of every frame; a metric of that name would be two columns."""


class Curve(NamedTuple):
    """What was recorded, step by step."""

    table: pa.Table
    """The columns that were asked for, in the order of the record."""
    names: list[str]
    """Of all columns that there are."""


def read_curve(trial: TrialDir, *, ended: bool, wanted: Collection[str] | None = None) -> Curve:
    """The stitched record, each step once.

    Args:
        trial: the folder.
        ended: whether metrics.parquet is final.
        wanted: columns; None: all that were recorded.

    Raises:
        StudyError: where metrics.parquet is damaged and there is nothing else.
    """
    if ended:
        try:
            file = pq.ParquetFile(trial.metrics_path, pre_buffer=False)
            names = [n for n in file.schema_arrow.names if n not in _KEYS]
            asked = [n for n in names if wanted is None or n in wanted]
            return Curve(file.read(asked, use_threads=False), names)
        except FileNotFoundError:
            pass  # not written yet, or on a disk that was full: the attempts hold the same rows
        except (pa.ArrowInvalid, OSError) as error:
            if not trial.attempts():
                said = str(error).split(".")[0]
                raise StudyError(f"{trial.metrics_path} is damaged ({said}). Restore it.") from None
    table = _quickly(trial)
    if table is None:
        table = _row_by_row(trial)
    asked = [n for n in table.column_names if wanted is None or n in wanted]
    return Curve(table.select(asked), table.column_names)


def _quickly(trial: TrialDir) -> pa.Table | None:
    """The attempts' logs by Arrow's reader: five times as fast as row by row, and it lets other
    threads run. None where a log is more than one number a key: a torn line, text, a truth value.
    """
    parts = []
    for attempt, start, end in trial.lineage():
        data = _whole_lines(attempt.path / METRICS)
        if not data:
            continue
        try:
            table = arrow_json.read_json(
                pa.BufferReader(data),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            )
        except pa.ArrowInvalid:
            return None
        plain = all(pa.types.is_int64(t) or pa.types.is_float64(t) for t in table.schema.types)
        if not plain or "step" not in table.column_names:
            return None
        step = table.column("step")
        if not pa.types.is_int64(step.type) or step.null_count:
            return None
        # As `TrialDir.stitched` has it: a first attempt may begin with what it measured before.
        inside = pc.and_(pc.greater_equal(step, start if start == 0 else start + 1),
                         pc.less_equal(step, end))  # fmt: skip
        parts.append(table.filter(inside))
    if not parts:
        return pa.table({})
    joined = pa.concat_tables(parts, promote_options="permissive")
    return joined.drop_columns([n for n in joined.column_names if n in _KEYS])


def _whole_lines(path: Path) -> bytes:
    """The log without a torn last line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    end = data.rfind(b"\n") + 1
    try:
        json.loads(data[end:] or b"{}")
    except ValueError:
        return data[:end]
    return data


def _row_by_row(trial: TrialDir) -> pa.Table:
    rows = list(trial.stitched())
    names = dict.fromkeys(k for row in rows for k in row if k not in _KEYS)
    return pa.table({n: _array([row.get(n) for row in rows]) for n in names})


def _array(values: list[Any]) -> pa.Array:
    whole = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    number = all(v is None or isinstance(v, int | float) for v in values)
    return pa.array(values, type=pa.int64() if whole else pa.float64() if number else None)
