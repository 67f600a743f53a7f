"""Files that are complete or absent, and logs that tolerate a torn last line."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from ablate.errors import ConfigError, StudyError

__all__ = [
    "append_lines",
    "check_writable",
    "free_name",
    "fsync_dir",
    "has_content",
    "last_row",
    "no_folder",
    "open_file",
    "read_json",
    "read_jsonl",
    "time_of",
    "write_atomic",
    "write_json",
]

NO_FILE = (errno.ELOOP, errno.ENXIO)
"""Of a link to itself, and of a socket."""


def check_writable(folder: Path, field: str, remedy: str) -> None:
    """Tries it, for permissions do not tell of read-only or full disks; leaves nothing behind.

    Args:
        folder: in which something is to be made; it need not be there yet.
        field: by which it is named, or could be.
        remedy: what the user can do.

    Raises:
        ConfigError: where nothing can be made in it.
    """
    there = folder
    try:
        there = next(
            p for p in (folder, *folder.absolute().parents) if p.exists() or p.is_symlink()
        )
        Path(tempfile.mkdtemp(prefix=".ablate-", dir=there)).rmdir()
    except OSError as error:
        reason = f"cannot be written ({there}: {error.strerror})"
        raise ConfigError(field, str(folder), reason, remedy) from None


def has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def free_name(path: Path) -> Path:
    """The first of `path`, `path`-2, `path`-3, ... that is not there."""
    later = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    return next(p for p in itertools.chain([path], later) if not p.exists())


def no_folder(*paths: Path) -> str | None:
    """What is wrong with the first of them that is there and no folder."""
    wrong = next((p for p in paths if p.exists() and not p.is_dir()), None)
    return None if wrong is None else f"{wrong} is damaged (it is no folder). Move it away."


def open_file(path: Path | str) -> BinaryIO:
    """For reading. What is no file is refused, so that nobody waits for the other end of a pipe.

    Raises:
        StudyError: for a folder, a pipe, a device, a link to itself.
        OSError: as `open`.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise StudyError(f"{path} is damaged (it is no file).") from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    what = "it is a folder" if stat.S_ISDIR(mode) else "it is no file"
    raise StudyError(f"{path} is damaged ({what}).")


def write_atomic(path: Path, text: str, *, durable: bool = True) -> None:
    """Writes a sibling and renames it over `path`, so a reader sees the old or the new, never
    half.

    Args:
        path: the file.
        text: what it is to hold.
        durable: whether it must survive a power cut; for what can be made again it need not.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names none
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=True)
    write_atomic(path, text + "\n", durable=durable)


def read_json(path: Path, remedy: str = "Restore it, or move it away.") -> dict[str, Any]:
    """Raises StudyError where the file is missing, damaged, or holds anything but an object."""
    try:
        with open_file(path) as file:
            value = json.loads(file.read().decode())
        if not isinstance(value, dict):
            raise ValueError(f"it holds {str(value)[:40]!r} in place of an object")
        return value
    except FileNotFoundError:
        raise StudyError(f"{path} is missing.") from None
    except StudyError as error:
        raise StudyError(f"{error} {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path} is damaged ({error}). {remedy}") from None


_compact = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps builds one each time


def _line(row: dict[str, Any]) -> bytes:
    """With orjson, which takes a tenth of the time but writes null for what is not finite."""
    try:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # of an integer beyond 64 bits, say
        line = b"null"
    return line if b"null" not in line else (_compact(row) + "\n").encode()


def append_lines(fd: int, rows: Sequence[dict[str, Any]]) -> None:
    """A JSON line each, all in one write; `fd` is opened with O_APPEND. Non-finite numbers become
    NaN, Infinity.
    """
    lines = b"".join([_line(row) for row in rows])
    while lines:  # a disk that is nearly full takes a part, and says so at the next write only
        lines = lines[os.write(fd, lines) :]


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a log; a torn last line (the writer was killed) ends it silently, a missing file
    is empty. Raises StudyError for what is no file.
    """
    try:
        file = open_file(path)
    except FileNotFoundError:
        return
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if line.endswith("\n"):
                    continue  # a torn line that a later writer's newline closed
                return
            if isinstance(row, dict):
                yield row


def last_row(path: Path, window: int = 65536) -> dict[str, Any] | None:
    """The last complete row of a log, looked for in its last `window` bytes; none of what is no
    file.
    """
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window))
            tail = file.read()
    except (FileNotFoundError, StudyError):
        return None
    for line in reversed(tail.split(b"\n")[:-1]):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return None


def time_of(folder: Path) -> float:
    """The time by the clock that dates the files in `folder`: over NFS, the server's."""
    probe = folder / f".clock.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        with open(probe, "wb") as file:
            file.write(b".")
            file.flush()
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
    finally:
        probe.unlink(missing_ok=True)


def fsync_dir(path: Path) -> None:
    """Makes a rename inside `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
