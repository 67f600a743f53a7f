"""Documents out of the user's text and JSONL files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Literal, cast

from ablate.errors import DataError

__all__ = ["Kind", "find_files", "inode", "jsonl_documents", "text_documents", "well_formed"]

Kind = Literal["text", "jsonl", "tokens"]

ENDINGS: dict[str, Kind] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".npy": "tokens",
    ".bin": "tokens",
}
FOREIGN = (".zst", ".parquet", ".arrow", ".csv", ".zip", ".tar", ".tgz", ".xz", ".bz2")
PASSAGE = 8 * 1024
"""A text that is named directly is cut at the first blank line after so many bytes."""
LONGEST = 8 * PASSAGE
"""And at a line end, or failing that anywhere, after so many."""


def find_files(
    paths: str | Sequence[str], field: str, wanted: str = "auto"
) -> dict[Path, tuple[Kind, bool]]:
    """The usable files of `paths` in order, each with its kind and whether it was named directly.

    Folders are searched through, sorted by name; files of foreign kinds in them are passed over,
    and so are the tables (.csv.gz) that Dolma writes beside its token files.

    Raises:
        DataError: naming `field`, where a path is missing, empty or cannot be read, where a folder
            holds nothing usable, or where text and token files are mixed.
    """
    found: dict[Path, tuple[Kind, bool]] = {}
    for text in [paths] if isinstance(paths, str) else paths:
        path = Path(text).expanduser().absolute()
        if path.is_dir():
            inside = [p for p in _walk(path) if (kind := _kind(p)) and wanted in ("auto", kind)]
            if not inside:
                known = " ".join(e for e, kind in ENDINGS.items() if wanted in ("auto", kind))
                raise DataError(
                    f"{field}={text}: the folder holds no file that can be used ({known}; text and "
                    "JSONL also with .gz). Name the files themselves if theirs end otherwise."
                )
            found.update((p, (ENDINGS[_ending(p)], False)) for p in inside)
        elif path.is_file():
            found[path] = (
                cast(Kind, wanted) if wanted != "auto" else _kind_or_refuse(path, field, text),
                True,
            )
        else:
            raise DataError(f"{field}={text}: there is no such file or folder (looked for {path}).")
    if not found:
        raise DataError(f"{field} is an empty list. Name at least one file or folder.")
    for path in found:
        if path.stat().st_size == 0:
            raise DataError(f"{field}: {path} is empty. Remove it, or name other files.")
    kinds = {kind for kind, _ in found.values()}
    if "tokens" in kinds and len(kinds) > 1:
        raise DataError(
            f"{field}={paths}: token files and text files are mixed. Set data.format=tokens or "
            "text."
        )
    return found


def inode(path: Path) -> tuple[int, int]:
    """The file itself, whatever links lead to it."""
    status = path.stat()
    return status.st_dev, status.st_ino


def text_documents(path: Path, whole: bool) -> Iterator[str]:
    """The text of a file: one document, or passages of about 8 KiB where it was named directly."""
    offset = 0
    with _open(path) as file:
        try:
            for passage in [file.read()] if whole else _passages(file):
                try:
                    text = passage.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{path} is not UTF-8 text: the byte at offset {offset + error.start} is "
                        f"0x{passage[error.start]:02x}. Convert it (iconv -t UTF-8), or, if it "
                        "holds tokens, set data.format=tokens and data.dtype."
                    ) from None
                yield text.removeprefix("\ufeff") if offset == 0 else text
                offset += len(passage)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from None


def jsonl_documents(path: Path, field: str) -> Iterator[str]:
    """The text field of each line of a JSONL file."""
    with _open(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _record_text(line, field, f"{path}, line {number}")
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from None


def well_formed(text: str) -> str:
    """`text` with lone surrogates, which JSON allows and UTF-8 does not, replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _record_text(line: bytes, field: str, where: str) -> str:
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 (byte {error.start} of the line). Convert the file."
        ) from None
    except ValueError as error:
        raise DataError(
            f"{where} is not JSON ({error}). Each line must be one object; for plain text set "
            "data.format=text."
        ) from None
    if not isinstance(record, dict) or field not in record:
        names = (
            ", ".join(record)
            if isinstance(record, dict)
            else f"a {type(record).__name__}, not an object"
        )
        raise DataError(f"{where} has no field {field!r} (it has: {names}). Set data.text_field.")
    text = record[field]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: the field {field!r} holds a {type(text).__name__}, not text. Set "
            "data.text_field."
        )
    return well_formed(text)


def _passages(file: BufferedIOBase) -> Iterator[bytes]:
    held = b""
    while line := file.readline(LONGEST):
        held += line
        if len(held) >= LONGEST:
            end = len(held) if held.endswith(b"\n") else _character_boundary(held)
        elif len(held) >= PASSAGE and not line.strip():
            end = len(held)
        else:
            continue
        yield held[:end]
        held = held[end:]
    if held:
        yield held


def _character_boundary(data: bytes) -> int:
    """The last position of `data` that does not split a UTF-8 character."""
    end = len(data)
    while end > len(data) - 4 and data[end - 1] & 0xC0 == 0x80:
        end -= 1
    return end - 1 if data[end - 1] >= 0xC0 else len(data)


def _walk(folder: Path) -> list[Path]:
    paths = (p for p in folder.rglob("*") if p.is_file())
    return sorted(
        p for p in paths if not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )


def _ending(path: Path) -> str:
    """The last ending, or the one before `.gz`."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def _kind(path: Path) -> Kind | None:
    kind = ENDINGS.get(_ending(path))
    return None if kind == "tokens" and path.name.lower().endswith(".gz") else kind


def _kind_or_refuse(path: Path, field: str, text: str) -> Kind:
    name = path.name.lower()
    if name.endswith(FOREIGN) or name.endswith((".csv.gz", ".tar.gz", ".npy.gz", ".bin.gz")):
        raise DataError(
            f"{field}={text}: files of this kind are not read. Unpack or convert it to text, JSONL "
            "or token files; Parquet and Arrow can be named by data.dataset."
        )
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            return "tokens"  # refused later, with the reason
    return _kind(path) or "text"


def _open(path: Path) -> BufferedIOBase:
    try:
        if path.suffix.lower() == ".gz":
            return gzip.open(path, "rb")
        return open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read ({error}). Is it complete and readable?")
