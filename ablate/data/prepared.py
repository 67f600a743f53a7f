"""Prepared folders: documents split, tokenised once and written in OLMo's own format.

    <folder>/
      train.npy  validation.npy     headerless little-endian tokens; each document ends with EOS
      token_bytes.bin               UTF-8 bytes of each token, uint16 (absent where unknown)
      tokenizer.json                absent for bytes
      data.json                     what the above are: written last

A document is held out when the hash of its text says so, whatever the other documents are, so that
the split survives additions, removals and reordering, and no text stands on both sides.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ablate.data.sources import Source
from ablate.data.tokenizers import Tokenizer
from ablate.errors import DataError
from ablate.rundir import read_json, write_json

__all__ = ["DESCRIPTION", "SCHEMA", "Split", "is_prepared", "split_documents", "write_prepared"]

log = logging.getLogger(__name__)

SCHEMA = 1
DESCRIPTION = "data.json"
GROUP_BYTES = 1 << 20
"""Text that is tokenised together."""
Documents = Callable[[], Iterator[str]]
OnBytes = Callable[[int], object] | None


@dataclass(frozen=True, kw_only=True)
class Split:
    """Documents and their sides; each method reads the source anew."""

    source: Documents
    validation: Documents | None
    bound: int
    """Documents of `source` with a hash below it are held out."""

    def train(self) -> Iterator[str]:
        return (text for held_out, text in self.both() if not held_out)

    def both(self) -> Iterator[tuple[bool, str]]:
        """Whether a document is held out, and its text."""
        for text in _non_empty(self.source()):
            yield _hash(text) < self.bound, text
        if self.validation:
            for text in _non_empty(self.validation()):
                yield True, text


def is_prepared(folder: Path) -> bool:
    """Whether `folder` has a description and token files of the size that it promises."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        item = np.dtype(description["dtype"]).itemsize
        return description["schema"] == SCHEMA and all(
            (folder / f"{side}.npy").stat().st_size == description[side]["tokens"] * item
            for side in ("train", "validation")
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def split_documents(source: Source, fraction: float, validation: Source | None) -> Split:
    """Holds out the documents of `validation`, or those whose hash lies in the lowest `fraction`.

    Where so few documents have none there, it is the one with the lowest hash.

    Raises:
        DataError: where either side would be empty, or every document of `validation` is one of
            `source`. Where some are, a warning says how many.
    """
    if validation is not None:
        for one in (source, validation):
            if not any(_non_empty(one.documents())):
                raise DataError(f"{one.name}: there are no documents in it.")
        _refuse_trained(source, validation)
        return Split(source=source.documents, validation=validation.documents, bound=0)
    lowest, highest = 2**64, -1
    for text in _non_empty(source.documents()):
        value = _hash(text)
        lowest, highest = min(lowest, value), max(highest, value)
    if highest < 0:
        raise DataError(f"{source.name}: there are no documents in it.")
    if lowest == highest:
        raise DataError(
            f"{source.name}: there is only one document, so none can be held out. Set "
            "data.validation_path, or give more documents (a folder of texts, JSONL, or one text "
            "of more than 16 KiB)."
        )
    bound = max(int(fraction * 2**64), lowest + 1)
    if highest < bound:
        raise DataError(
            f"data.validation_fraction={fraction:g} holds out every document of {source.name}. "
            "Lower it, or give more documents."
        )
    return Split(source=source.documents, validation=None, bound=bound)


def _refuse_trained(source: Source, validation: Source) -> None:
    """Copies of training documents among those that are held out."""
    held_out = [_hash(text) for text in _non_empty(validation.documents())]
    trained = set(held_out).intersection(map(_hash, _non_empty(source.documents())))
    copies = sum(each in trained for each in held_out)
    if copies == len(held_out):
        raise DataError(
            f"data.validation_path={validation.name}: each of its documents is also trained on "
            f"({source.name}). Held-out text must be other text."
        )
    if copies:
        log.warning(
            "data.validation_path=%s: %s of its %s documents are also trained on, so the held-out "
            "loss comes out too low. Leave them out.", validation.name, copies, len(held_out)
        )  # fmt: skip


def write_prepared(
    folder: Path,
    *,
    name: str,
    split: Split,
    tokenizer: Tokenizer,
    serialised: str | None,
    dtype: str,
    on_bytes: OnBytes = None,
) -> dict[str, Any]:
    """Writes a prepared folder and returns its description."""
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"data.tokenizer={tokenizer.name} has no token that ends a document. Set "
            "model.eos_token_id to the one that it uses."
        )
    if tokenizer.vocab_size > int(np.iinfo(dtype).max) + 1:
        raise DataError(
            f"data.dtype={dtype} cannot hold the {tokenizer.vocab_size} tokens of data.tokenizer="
            f"{tokenizer.name}. Set data.dtype to null or uint32."
        )
    with (
        _Writer(folder / "train.npy", tokenizer, dtype, on_bytes) as train,
        _Writer(folder / "validation.npy", tokenizer, dtype, on_bytes) as validation,
    ):
        for held_out, text in split.both():
            (validation if held_out else train).add(text)
    sides = {"train": train.facts(), "validation": validation.facts()}
    exact = tokenizer.token_bytes is not None and all(
        s["bytes"] == s["decoded_bytes"] for s in sides.values()
    )
    if exact:
        assert tokenizer.token_bytes is not None
        tokenizer.token_bytes.astype("<u2").tofile(folder / "token_bytes.bin")
    if serialised is not None:
        (folder / "tokenizer.json").write_text(serialised, encoding="utf-8")
    digest = hashlib.sha256(f"{sides['train']['sha256']} {sides['validation']['sha256']}".encode())
    description = {
        "schema": SCHEMA,
        "name": name,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": dtype,
        "exact_bytes": exact,
        **sides,
        "fingerprint": digest.hexdigest(),
    }
    write_json(folder / DESCRIPTION, description)
    return description


def read_description(folder: Path) -> dict[str, Any]:
    """Raises DataError where the folder was prepared by another version or is damaged."""
    description = read_json(folder / DESCRIPTION)
    if not is_prepared(folder):
        raise DataError(
            f"{folder} is not a complete prepared folder of this version (schema {SCHEMA}). "
            "Prepare it again (ablate data prepare)."
        )
    return description


class _Writer:
    """The tokens of documents, each followed by EOS, as in OLMo's and Dolma's files."""

    def __init__(self, path: Path, tokenizer: Tokenizer, dtype: str, on_bytes: OnBytes) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (closed by __exit__)
        self._tokenizer, self._on_bytes = tokenizer, on_bytes
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._eos = np.array([tokenizer.eos_token_id], dtype=self._dtype)
        self._waiting: list[str] = []
        self._waiting_bytes = 0
        self._digest = hashlib.sha256()
        self._count = {"tokens": 0, "documents": 0, "bytes": 0, "decoded_bytes": 0, "largest": -1}

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._flush()

    def add(self, text: str) -> None:
        self._waiting.append(text)
        self._waiting_bytes += len(text.encode("utf-8"))
        if self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def facts(self) -> dict[str, Any]:
        return {**self._count, "sha256": self._digest.hexdigest()}

    def _flush(self) -> None:
        if not self._waiting:
            return
        pieces: list[np.ndarray] = []
        for ids in self._tokenizer.encode(self._waiting):
            pieces += [ids.astype(self._dtype), self._eos]
        tokens = np.concatenate(pieces)
        data = tokens.tobytes()
        self._file.write(data)
        self._digest.update(data)
        count = self._count
        count["tokens"] += len(tokens)
        count["documents"] += len(self._waiting)
        count["bytes"] += self._waiting_bytes
        count["largest"] = max(count["largest"], int(tokens.max()))
        if self._tokenizer.token_bytes is not None:
            count["decoded_bytes"] += int(self._tokenizer.token_bytes[tokens].sum(dtype=np.int64))
        if self._on_bytes:
            self._on_bytes(self._waiting_bytes)
        self._waiting, self._waiting_bytes = [], 0


def _non_empty(documents: Iterable[str]) -> Iterator[str]:
    return (text for text in documents if text)


def _hash(text: str) -> int:
    """64 bits of the text's sha256; a document is below `bound` with probability bound / 2^64."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")
