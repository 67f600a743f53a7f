"""The curves of ended trials that are alike, decoded into their places in one array a column.

Nothing is held twice, and no Python runs between the files but a few lines, so that two cores are
used. Memory is asked of the system before, while the small files are read: a machine may take as
long to give it out as to decode the files into it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Room", "decode", "reserve", "touch"]

_THREADS = 2
_KINDS = {"int64": np.dtype(np.int64), "double": np.dtype(np.float64)}
_PIECE = 1 << 22
"""Numbers that are touched between two looks at whether to stop."""


class Room(NamedTuple):
    """Where the columns of files go, as long as they are alike."""

    paths: Sequence[str]
    schema: Any
    """Parquet's, of all files."""
    rows: int
    """Of each file."""
    names: list[str]
    """Of all columns that there are."""
    arrays: dict[str, np.ndarray]
    """Of the columns that are read: all files, one after another; null is not a number."""


def reserve(
    paths: Sequence[str], wanted: Collection[str] | None, left_out: Collection[str]
) -> Room | None:
    """Room for as many files as are like the one of middle size; None where that is damaged or more
    than numbers, or there is none.

    Args:
        paths: of metrics.parquet.
        wanted: columns; None: all.
        left_out: never read.
    """
    sizes = []
    for path in paths:
        with contextlib.suppress(OSError):
            sizes.append((os.path.getsize(path), path))
    try:
        meta = pq.read_metadata(sorted(sizes)[len(sizes) // 2][1])
        kinds = {f.name: str(f.type) for f in meta.schema.to_arrow_schema()}
        names = [name for name in kinds if name not in left_out]
        read = [name for name in names if wanted is None or name in wanted]
        rows = meta.num_rows * len(paths)
        arrays = {name: np.empty(rows, _KINDS[kinds[name]]) for name in read}
    except (OSError, pa.ArrowException, IndexError, KeyError):
        return None
    return Room(paths, meta.schema, meta.num_rows, names, arrays)


def touch(room: Room, enough: threading.Event) -> None:
    """Has the system give out the memory of the arrays, until it is told to stop."""
    for array in room.arrays.values():
        for start in range(0, len(array), _PIECE):
            if enough.is_set():
                return
            array[start : start + _PIECE] = 0


def decode(room: Room, chosen: Sequence[int]) -> set[int]:
    """Fills the places of those of the chosen files that are like the others, and says which."""

    def fill(i: int) -> bool:
        try:
            # Mapped, its pages would cost more than reading it; read ahead, it is copied twice.
            file = pq.ParquetFile(pa.OSFile(room.paths[i]), pre_buffer=False)
            if file.metadata.num_rows != room.rows or not file.metadata.schema.equals(room.schema):
                return False
            table = file.read(list(room.arrays), use_threads=False)
        except (OSError, pa.ArrowException):
            return False
        place = slice(i * room.rows, (i + 1) * room.rows)
        for array, values in zip(room.arrays.values(), table.columns, strict=True):
            if values.null_count and array.dtype.kind == "i":
                return False
            array[place] = values.to_numpy()
        return True

    def fill_all(part: Sequence[int]) -> list[int]:
        return [i for i in part if fill(i)]

    # A task a thread: handing out a thousand of them would hold the threads up.
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = pool.map(fill_all, [chosen[k::_THREADS] for k in range(_THREADS)])
        return {i for part in parts for i in part}
