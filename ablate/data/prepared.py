"""Prepared folders: documents split, tokenised once and written in OLMo's own format.

    <folder>/
      train.npy  validation.npy     headerless little-endian tokens; each document ends with EOS
      token_bytes.bin               UTF-8 bytes of each token, uint16 (absent where unknown)
      tokenizer.json                absent for bytes
      data.json                     what the above are: written last

A document is held out when the hash of its text says so, whatever the other documents are, so that the split
survives additions, removals and reordering, and no text stands on both sides.
"""

from __future__ import annotations

import hashlib
import json
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

SCHEMA = 1
DESCRIPTION = "data.json"
GROUP_BYTES = 1 << 20
"""Text that is tokenised together."""
Documents = Callable[[], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The two sides of a source; each call reads the documents anew."""

    train: Documents
    validation: Documents


def is_prepared(folder: Path) -> bool:
    """Whether `folder` is complete: its description is there and the token files have the promised size."""
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
    """Held out are the documents of `validation`, or those whose hash lies in the lowest `fraction`.

    Where so few documents have none there, it is the one with the lowest hash.

    Raises:
        DataError: where either side would be empty.
    """
    if validation is not None:
        for one in (source, validation):
            if not any(_non_empty(one.documents())):
                raise DataError(f"{one.name}: there are no documents in it.")
        return Split(
            train=lambda: _non_empty(source.documents()),
            validation=lambda: _non_empty(validation.documents()),
        )
    bound = int(fraction * 2**64)
    hashes = {_hash(text) for text in _non_empty(source.documents())}
    if not hashes:
        raise DataError(f"{source.name}: there are no documents in it.")
    if len(hashes) == 1:
        raise DataError(
            f"{source.name}: there is only one document, so none can be held out. Set data.validation_path, or "
            "give more documents (a folder of texts, JSONL, or one text of more than 16 KiB)."
        )
    bound = max(bound, min(hashes) + 1)
    if max(hashes) < bound:
        raise DataError(
            f"data.validation_fraction={fraction:g} holds out all {len(hashes)} documents of {source.name}. "
            "Lower it, or give more documents."
        )
    return Split(
        train=lambda: (t for t in _non_empty(source.documents()) if _hash(t) >= bound),
        validation=lambda: (t for t in _non_empty(source.documents()) if _hash(t) < bound),
    )


def write_prepared(
    folder: Path,
    *,
    name: str,
    split: Split,
    tokenizer: Tokenizer,
    serialised: str | None,
    dtype: str,
    on_bytes: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Writes a prepared folder and returns its description."""
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"data.tokenizer={tokenizer.name} has no token that ends a document. Set model.eos_token_id to the one "
            "that it uses."
        )
    if tokenizer.vocab_size > int(np.iinfo(dtype).max) + 1:
        raise DataError(
            f"data.dtype={dtype} cannot hold the {tokenizer.vocab_size} tokens of data.tokenizer="
            f"{tokenizer.name}. Set data.dtype to null or uint32."
        )
    sides = {
        side: _write_tokens(folder / f"{side}.npy", documents(), tokenizer, dtype, on_bytes)
        for side, documents in (("train", split.train), ("validation", split.validation))
    }
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
            f"{folder} is not a complete prepared folder of this version (schema {SCHEMA}). Prepare it again "
            "(ablate data prepare)."
        )
    return description


def _write_tokens(
    path: Path,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    dtype: str,
    on_bytes: Callable[[int], object] | None,
) -> dict[str, Any]:
    """The documents' tokens, each document followed by EOS, as OLMo's and Dolma's files are."""
    digest = hashlib.sha256()
    count = {"tokens": 0, "documents": 0, "bytes": 0, "decoded_bytes": 0}
    largest = -1
    little_endian = np.dtype(dtype).newbyteorder("<")
    eos = np.array([tokenizer.eos_token_id], dtype=little_endian)
    with open(path, "wb") as file:
        for group in _groups(documents):
            size = sum(len(text.encode("utf-8")) for text in group)
            pieces: list[np.ndarray] = []
            for ids in tokenizer.encode(group):
                pieces += [ids.astype(little_endian), eos]
            tokens = np.concatenate(pieces)
            data = tokens.tobytes()
            file.write(data)
            digest.update(data)
            largest = max(largest, int(tokens.max()))
            count["tokens"] += len(tokens)
            count["documents"] += len(group)
            count["bytes"] += size
            if tokenizer.token_bytes is not None:
                count["decoded_bytes"] += int(tokenizer.token_bytes[tokens].sum(dtype=np.int64))
            if on_bytes:
                on_bytes(size)
    return {**count, "largest": largest, "sha256": digest.hexdigest()}


def _groups(documents: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for text in documents:
        group.append(text)
        size += len(text)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _non_empty(documents: Iterable[str]) -> Iterator[str]:
    return (text for text in documents if text)


def _hash(text: str) -> int:
    """64 bits of the text's sha256; a document is below `bound` with probability bound / 2^64."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")
