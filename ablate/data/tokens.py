"""Token files as OLMo has them: headerless raw little-endian arrays, read through the page cache.

A stream is a list of such files (or stretches of them). Training reads it as rows: consecutive
non-overlapping sequences within each file, whose tail is dropped. Validation reads it end to end.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ablate.errors import DataError

__all__ = ["DTYPES", "TokenFile", "TokenStream", "inspect", "smallest_dtype"]

DTYPES = ("uint8", "uint16", "uint32", "uint64")
OnBytes = Callable[[int], object] | None

CHUNK = 1 << 22
"""Tokens looked at together where a file is read from end to end."""


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """The tokens [start, stop) of a raw file, as it was when it was checked (size, mtime_ns)."""

    path: Path
    dtype: str
    start: int
    stop: int
    size: int
    mtime_ns: int
    largest: int
    """The largest token of the stretch."""
    sha256: str
    """Of the bytes of the stretch."""

    def __len__(self) -> int:
        return self.stop - self.start

    def tokens(self) -> np.ndarray:
        """The stretch as a read-only array over the file's pages, in the file's dtype."""
        whole = _map(self.path, self.dtype, self.size, self.mtime_ns)
        return whole[self.start : self.stop]


class TokenStream:
    """Token files, one after the other."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.files = tuple(files)
        self.ends = np.cumsum([len(f) for f in self.files], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.files else 0

    @property
    def largest(self) -> int:
        return max((f.largest for f in self.files), default=-1)

    def sequences(self, length: int) -> int:
        """How many rows of `length` tokens there are; the tail of each file is dropped."""
        return int(self._row_ends(length)[-1]) if self.files else 0

    def rows(self, indices: Int64[np.ndarray, "b"], length: int) -> Int64[np.ndarray, "b t"]:
        """The rows `indices`, each `length` tokens; the cost is that of the batch alone."""
        if len(self.files) == 1:
            return _grid(self.files[0], length)[indices].astype(np.int64)
        ends = self._row_ends(length)
        owner = np.searchsorted(ends, indices, side="right")
        result = np.empty((len(indices), length), dtype=np.int64)
        for i in np.unique(owner):
            here = owner == i
            first = ends[i - 1] if i else 0
            result[here] = _grid(self.files[i], length)[indices[here] - first]
        return result

    def read(self, start: int, stop: int) -> Int64[np.ndarray, "n"]:
        """The tokens [start, stop) of the whole stream."""
        parts = []
        offset = 0
        for file, end in zip(self.files, self.ends, strict=True):
            lo, hi = max(start, offset) - offset, min(stop, int(end)) - offset
            if lo < hi:
                parts.append(file.tokens()[lo:hi].astype(np.int64))
            offset = int(end)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def check(self, vocab_size: int, remedy: str | None = None) -> None:
        """Raises DataError, naming file and offset, where a token has no row in the vocabulary.

        Args:
            vocab_size: of the model.
            remedy: in one sentence; None: what can be said of the tokens alone.
        """
        for file in self.files:
            if file.largest < vocab_size:
                continue
            offset, token = _first_at_least(file, vocab_size)
            item = np.dtype(file.dtype).itemsize
            most = max(f.largest for f in self.files) + 1
            other = (
                f"Set model.vocab_size={most} or more, and model.eos_token_id to the token that "
                f"ends a document; or, if the file is not {file.dtype}, set data.dtype"
            )
            raise DataError(
                f"{file.path}: token {token} at position {offset} (byte {offset * item}) does not "
                f"fit model.vocab_size={vocab_size}; the largest token of the file is "
                f"{file.largest}. {remedy or other}."
            )

    @functools.lru_cache(maxsize=8)  # noqa: B019 (a stream lives as long as the process)
    def _row_ends(self, length: int) -> Int64[np.ndarray, "f"]:
        return np.cumsum([len(f) // length for f in self.files], dtype=np.int64)


def smallest_dtype(vocab_size: int) -> str:
    """uint16 where the vocabulary fits, else uint32 (OLMo's two)."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def inspect(
    path: Path, dtype: str, start: int = 0, stop: int | None = None, *, on_bytes: OnBytes = None
) -> TokenFile:
    """Reads a stretch once: its largest token and its sha256."""
    status = path.stat()
    item = np.dtype(dtype).itemsize
    stop = status.st_size // item if stop is None else stop
    whole = _map(path, dtype, status.st_size, status.st_mtime_ns)
    largest, digest = -1, hashlib.sha256()
    for chunk in _chunks(whole[start:stop]):
        largest = max(largest, int(chunk.max()))
        digest.update(chunk.data)
        if on_bytes:
            on_bytes(chunk.nbytes)
    return TokenFile(
        path=path,
        dtype=dtype,
        start=start,
        stop=stop,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        largest=largest,
        sha256=digest.hexdigest(),
    )


def _first_at_least(file: TokenFile, bound: int) -> tuple[int, int]:
    offset = file.start
    for chunk in _chunks(file.tokens()):
        hits = np.flatnonzero(chunk >= bound)
        if hits.size:
            return offset + int(hits[0]), int(chunk[hits[0]])
        offset += len(chunk)
    raise DataError(f"{file.path} changed while it was read. Start again when nobody writes to it.")


def _chunks(tokens: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(tokens), CHUNK):
        yield tokens[i : i + CHUNK]


@functools.lru_cache(
    maxsize=256
)  # open maps, so that a folder of thousands of files stays within ulimit
def _map(path: Path, dtype: str, size: int, mtime_ns: int) -> np.ndarray:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read any more: {error.strerror}.") from None
    if (status.st_size, status.st_mtime_ns) != (size, mtime_ns):
        raise DataError(
            f"{path} changed since it was checked. Start again when nobody writes to it."
        )
    little_endian = np.dtype(dtype).newbyteorder("<")
    mapped = np.memmap(path, dtype=little_endian, mode="r", shape=(size // little_endian.itemsize,))
    return mapped.view(np.ndarray)  # slicing a memmap object costs several times as much


@functools.lru_cache(maxsize=256)
def _grid(file: TokenFile, length: int) -> np.ndarray:
    rows = len(file) // length
    return file.tokens()[: rows * length].reshape(rows, length)
