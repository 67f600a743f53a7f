"""The cache of archives and token files: complete or absent, safe for several processes at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from ablate.errors import DataError

__all__ = ["cache_folder", "exclusive", "locked", "publish"]


def cache_folder(configured: str | None) -> Path:
    """`configured` (data.cache_dir), else $ABLATE_CACHE, else ~/.cache/ablate."""
    text = configured or os.environ.get("ABLATE_CACHE") or "~/.cache/ablate"
    return Path(text).expanduser().absolute()


@contextlib.contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Serialises writers of one entry on this machine; the kernel drops a dead owner's lock.

    Where the file system has no locks the work may be done twice, and the atomic rename still
    keeps the result whole.
    """
    folder = _writable(cache / "locks")
    with open(folder / f"{name}.lock", "a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def exclusive(parent: Path) -> Iterator[Path]:
    """A fresh folder below `parent` that vanishes afterwards unless it was moved away."""
    folder = _writable(parent) / f".{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, target: Path) -> None:
    """Renames a finished folder to `target`; where somebody else was faster, theirs stands."""
    try:
        os.rename(folder, target)
    except OSError:
        if not target.is_dir():
            raise


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"The cache folder {folder} cannot be written ({error.strerror}). Set data.cache_dir "
            "or the environment variable ABLATE_CACHE to a folder of yours."
        ) from None
    if not os.access(folder, os.W_OK):
        raise DataError(
            f"The cache folder {folder} cannot be written. Set data.cache_dir or the environment "
            "variable ABLATE_CACHE to a folder of yours."
        )
    return folder
