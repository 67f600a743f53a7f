"""Token files as they are (OLMo's, Dolma's): every mistake is found before training starts.

Each file is read once from end to end (largest token, sha256); the result is remembered in the
cache under the file's path, size and modification time. Without held-out files of their own, the
last documents of each file are held out: what follows the last EOS before the cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ablate.data.texts import find_files
from ablate.data.tokens import CHUNK, TokenFile, TokenStream, inspect
from ablate.errors import DataError
from ablate.rundir import write_json

__all__ = ["open_token_files"]

OnBytes = Callable[[int], object] | None


def open_token_files(
    paths: str | Sequence[str],
    field: str,
    dtype: str,
    cache: Path,
    *,
    held_out: float = 0.0,
    eos_token_id: int | None = None,
    on_bytes: OnBytes = None,
) -> tuple[TokenStream, TokenStream]:
    """The training tokens and the last `held_out` share of the files at `paths`.

    Raises:
        DataError: naming the file, for a NumPy header, a size that is no multiple of the item's, a
        dtype
            that the content belies.
    """
    train, validation = [], []
    for path in find_files(paths, field, "tokens"):
        count = _check(path, dtype)
        cut = _cut(path, dtype, count, held_out, eos_token_id) if held_out else count
        if cut > 0:
            train.append(_remembered(path, dtype, 0, cut, cache, on_bytes))
        if cut < count:
            validation.append(_remembered(path, dtype, cut, count, cache, on_bytes))
    return TokenStream(train), TokenStream(validation)


def _check(path: Path, dtype: str) -> int:
    """The number of tokens in the file."""
    size, item = path.stat().st_size, np.dtype(dtype).itemsize
    with open(path, "rb") as file:
        head = file.read(1 << 20)
    if head.startswith(b"\x93NUMPY"):
        raise DataError(
            f"{path} was written by numpy.save and has its header; OLMo's token files are "
            f"headerless. Rewrite it: numpy.load(file).astype('{dtype}').tofile(other)."
        )
    if size % item:
        raise DataError(
            f"{path} is truncated or not {dtype}: its {size} bytes are no multiple of {item}. Set "
            "data.dtype to the type it was written with, or copy the file again."
        )
    if dtype == "uint16" and size % 4 == 0:
        pairs = np.frombuffer(head[: len(head) // 4 * 4], dtype="<u2").reshape(-1, 2)
        if len(pairs) >= 32 and pairs[:, 1].max() <= 3 and pairs[:, 0].max() > 255:
            raise DataError(
                f"{path} looks like uint32, not uint16: every second value is next to zero. Set "
                "data.dtype=uint32."
            )
    return size // item


def _cut(path: Path, dtype: str, count: int, held_out: float, eos_token_id: int | None) -> int:
    """The first held-out token: behind the last EOS before (1 - held_out) of the file, or there."""
    cut = int(count * (1 - held_out))
    if eos_token_id is None:
        return cut
    little_endian = np.dtype(dtype).newbyteorder("<")
    stop = cut
    while stop > 0:
        start = max(0, stop - CHUNK)
        tokens = np.fromfile(
            path, dtype=little_endian, count=stop - start, offset=start * little_endian.itemsize
        )
        ends = np.flatnonzero(tokens == eos_token_id)
        if ends.size:
            return start + int(ends[-1]) + 1
        stop = start
    return cut


def _remembered(
    path: Path, dtype: str, start: int, stop: int, cache: Path, on_bytes: OnBytes
) -> TokenFile:
    status = path.stat()
    key = json.dumps([str(path), dtype, start, stop, status.st_size, status.st_mtime_ns])
    note = cache / "scans" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return TokenFile(**{**json.loads(note.read_text(encoding="utf-8")), "path": path})
    file = inspect(path, dtype, start, stop, on_bytes=on_bytes)
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {**asdict(file), "path": str(path)})
    return file
