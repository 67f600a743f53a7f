"""The curves of many ended trials at once: every file decoded into its place in one array a column.

Nothing is held twice, and no Python runs between the files but a few lines, so that two cores are
used while a third part of the work (states, summaries, configurations) goes on beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Columns", "read_columns"]

_THREADS = 2
_KINDS = {"int64": np.dtype(np.int64), "double": np.dtype(np.float64)}


class Columns(NamedTuple):
    lengths: list[int]
    """Rows of each file."""
    names: list[str]
    """Of all columns that there are."""
    columns: dict[str, np.ndarray]
    """Of all files, one after another; what is null is not a number."""


def read_columns(
    paths: Sequence[Path], wanted: Collection[str] | None, left_out: Collection[str]
) -> Columns | None:
    """All files of equal columns of numbers; None where they are not, or one is missing or damaged.

    Args:
        paths: of metrics.parquet.
        wanted: columns; None: all.
        left_out: never read.
    """
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            metas = list(pool.map(pq.read_metadata, paths))
            first = metas[0].schema
            schema = first.to_arrow_schema()
            there = [n for n in schema.names if n not in left_out]
            names = [n for n in there if wanted is None or n in wanted]
            kinds = [str(schema.field(n).type) for n in names]
            if any(kind not in _KINDS for kind in kinds):
                return None
            if not all(meta.schema.equals(first) for meta in metas):
                return None
            lengths = [meta.num_rows for meta in metas]
            ends = np.cumsum(lengths)
            types = [_KINDS[kind] for kind in kinds]
            made = {n: np.empty(ends[-1], kind) for n, kind in zip(names, types, strict=True)}

            def fill(i: int) -> bool:
                file = pq.ParquetFile(paths[i], metadata=metas[i], memory_map=True)
                table = file.read(names, use_threads=False)
                place = slice(int(ends[i]) - lengths[i], int(ends[i]))
                for name in names:
                    values = table.column(name)
                    if values.null_count and made[name].dtype.kind == "i":
                        return False
                    made[name][place] = values.to_numpy()
                return True

            whole = all(pool.map(fill, range(len(paths))))
            return Columns(lengths, there, made) if whole else None
    except (OSError, pa.ArrowException, IndexError):
        return None  # the slow way says what is wrong
