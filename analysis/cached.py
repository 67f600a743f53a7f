"""Large finished studies, kept as columns beside the study: loaded in a second instead of ten.

`<study>/.cache/<key>/` holds the rows of trials and events, and each column of the curves as one
array that is mapped into memory. The key is a hash of names, times and sizes of every file that
was read, so that nothing stale is ever served; the folder can be deleted at any time. Small studies
and unfinished ones have no cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ablate.rundir import StudyDir
from ablate.rundir.names import ATTEMPTS, CONFIG, EVENTS, STATE, STITCHED, SUBMISSIONS, SUMMARY

__all__ = ["LEAST_ROWS", "Cache", "cache_of"]

LEAST_ROWS = 1_000_000
"""Of the curves; fewer are read as quickly from where they are."""
_LEAST_TRIALS = 50
_VERSION = 1
_FILES = (STATE, SUMMARY, CONFIG, STITCHED, EVENTS, ATTEMPTS)
"""Whatever `load` reads of an ended trial; a new attempt changes the folder's time."""
_LARGEST = 8 * 2**30


class Cache:
    """The columns of one study in one state."""

    def __init__(self, root: Path, key: str) -> None:
        self.root, self.path = root, root / key

    def index(self) -> dict[str, Any] | None:
        """Rows of trials and events, configurations, and how long each curve is."""
        try:
            return json.loads((self.path / "index.json").read_bytes())
        except (OSError, ValueError):
            return None

    def column(self, name: str) -> np.ndarray | None:
        """A column of all curves; private to the reader, who may change it."""
        try:
            return np.asarray(np.load(self._file(name), mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError):
            return None

    def write(self, index: Mapping[str, Any] | None, columns: Mapping[str, np.ndarray]) -> None:
        """Keeps columns beside those that are there; `index` starts the cache of this state, and
        removes those of earlier ones. A study that may only be read is left as it is.
        """
        if sum(c.nbytes for c in columns.values()) > _LARGEST:
            return
        with contextlib.suppress(OSError):
            if index is not None:
                self.path.mkdir(parents=True, exist_ok=True)
                text = json.dumps(index, separators=(",", ":"))
                self._write("index.json", lambda file: file.write(text.encode()))
            for name, values in columns.items():
                if values.dtype.kind in "iuf":
                    self._write(self._file(name).name, functools.partial(_save, values))
            for old in self.root.iterdir() if index is not None else ():
                if old != self.path:
                    shutil.rmtree(old, ignore_errors=True)

    def _file(self, name: str) -> Path:
        return self.path / (hashlib.sha256(name.encode()).hexdigest()[:16] + ".npy")

    def _write(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Whole or not at all."""
        temporary = self.path / f"{name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with temporary.open("wb") as file:
                write(file)
            os.replace(temporary, self.path / name)
        finally:
            temporary.unlink(missing_ok=True)


def _save(values: np.ndarray, file: BinaryIO) -> None:
    np.save(file, values, allow_pickle=False)


def cache_of(study: StudyDir, ids: Iterable[str]) -> Cache | None:
    """The cache for what lies on disk now; None for a small study, which needs none."""
    ids = list(ids)
    if len(ids) < _LEAST_TRIALS:
        return None
    digest = hashlib.sha256(f"{_VERSION}".encode())
    digest.update(study.manifest_path.read_bytes())
    handed_over = study.path / SUBMISSIONS
    digest.update(",".join(sorted(p.name for p in handed_over.glob("*"))).encode())
    for id in ids:
        folder = f"{study.path}/trials/{id}/"
        for name in _FILES:
            try:
                found = os.stat(folder + name)
            except OSError:
                digest.update(b"-")
                continue
            digest.update(f"{found.st_mtime_ns},{found.st_size};".encode())
    return Cache(study.path / ".cache", digest.hexdigest()[:24])
