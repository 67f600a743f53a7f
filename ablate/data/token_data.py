"""Data straight from token files of the user's own, as they are: nothing is written but checks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ablate.config.schema import DataConfig
from ablate.data.bar import shown_bar
from ablate.data.cache import cache_folder
from ablate.data.dataset import Data
from ablate.data.raw import open_token_files
from ablate.data.texts import find_files, inode
from ablate.data.tokenizers import Tokenizer
from ablate.data.tokens import smallest_dtype
from ablate.data.vocabulary import choose_tokenizer
from ablate.errors import DataError

__all__ = ["holds_tokens", "open_raw", "refuse_overlap"]


def open_raw(config: DataConfig, eos_token_id: int | None, progress: bool) -> Data:
    assert config.path is not None
    cache = cache_folder(config.cache_dir)
    tokenizer: Tokenizer | None = None
    if config.tokenizer == "bpe":
        raise DataError(
            "data.tokenizer=bpe: no vocabulary can be trained on token files. Name the "
            "tokenizer.json that they were made with, or leave the default."
        )
    if config.tokenizer != "bytes":  # the default, which says nothing about the files
        tokenizer, _ = choose_tokenizer(config, None, cache, eos_token_id)
        if eos_token_id is None:
            eos_token_id = tokenizer.eos_token_id
    dtype = config.dtype or (smallest_dtype(tokenizer.vocab_size) if tokenizer else "uint16")
    own = config.validation_path
    if own is not None:
        refuse_overlap(config)
        if not holds_tokens(config, own, "data.validation_path"):
            raise DataError(
                f"data.validation_path={own} holds text, but data.path={config.path} token files. "
                "Name token files."
            )
    with shown_bar(progress, "checking token files") as on_bytes:
        train, held_out = open_token_files(
            config.path,
            "data.path",
            dtype,
            cache,
            held_out=0.0 if own is not None else config.validation_fraction,
            eos_token_id=eos_token_id,
            on_bytes=on_bytes,
        )
        if own is not None:
            held_out, _ = open_token_files(
                own, "data.validation_path", dtype, cache, on_bytes=on_bytes
            )
            trained = {f.sha256 for f in train.files}
            copies = [f.path for f in held_out.files if f.sha256 in trained]
            if copies:
                raise DataError(
                    f"data.validation_path: {copies[0]} holds the tokens of a file that is also "
                    "trained on (data.path). Held-out files must be others."
                )
    if tokenizer is not None:
        largest = max(train.largest, held_out.largest)
        if largest >= tokenizer.vocab_size:
            raise DataError(
                f"data.path={config.path}: the files hold token {largest}, but data.tokenizer="
                f"{config.tokenizer} has {tokenizer.vocab_size} tokens, so they were made with "
                f"another, or are not {dtype} (data.dtype)."
            )
    digest = hashlib.sha256()
    for side in (train, held_out):
        digest.update(" ".join(f.sha256 for f in side.files).encode() + b"\n")
    first = config.path if isinstance(config.path, str) else config.path[0]
    return Data(
        name=Path(first).name,
        train=train,
        held_out=held_out,
        vocab_size=tokenizer.vocab_size if tokenizer else max(train.largest, held_out.largest) + 1,
        eos_token_id=eos_token_id,
        pad_token_id=tokenizer.pad_token_id if tokenizer else eos_token_id,
        token_bytes=tokenizer.token_bytes if tokenizer else None,
        fingerprint=digest.hexdigest(),
        document_masking=config.document_masking,
        tokenizer_name=config.tokenizer if tokenizer else "unknown",
        tokenizer_source=tokenizer,
    )


def holds_tokens(config: DataConfig, paths: str | list[str], field: str = "data.path") -> bool:
    return "tokens" in {kind for kind, _ in find_files(paths, field, config.format).values()}


def refuse_overlap(config: DataConfig) -> None:
    if config.path is None or config.validation_path is None:
        return
    held_out = find_files(config.validation_path, "data.validation_path", config.format)
    trained = {inode(path) for path in find_files(config.path, "data.path", config.format)}
    shared = [path for path in held_out if inode(path) in trained]
    if shared:
        raise DataError(
            f"data.validation_path: {min(shared)} is also trained on (data.path). Held-out files "
            "must be others."
        )
