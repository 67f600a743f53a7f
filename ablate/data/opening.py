"""From a DataConfig to Data: prepared once and cached, opened in a millisecond ever after."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ablate.config.schema import DataConfig
from ablate.data.bar import shown_bar
from ablate.data.cache import cache_folder, exclusive, locked, publish
from ablate.data.dataset import Data
from ablate.data.fetch import UnreachableError
from ablate.data.prepared import (
    DESCRIPTION,
    SCHEMA,
    is_prepared,
    read_description,
    split_documents,
    write_prepared,
)
from ablate.data.sources import Source, fallback, file_source, open_source
from ablate.data.token_data import holds_tokens, open_raw, refuse_overlap
from ablate.data.tokens import TokenFile, TokenStream, smallest_dtype
from ablate.data.vocabulary import choose_tokenizer, tokenizer_identity
from ablate.errors import DataError

__all__ = ["open_data", "prepare_files"]


def open_data(
    config: DataConfig,
    *,
    eos_token_id: int | None = None,
    progress: bool = False,
    substitute: bool = True,
) -> Data:
    """The data that `config` names; downloads, tokenises and checks what was not yet.

    Safe for several processes at once: one prepares, the others wait and use its result.

    Args:
        config: The `data` section.
        eos_token_id: The model's; it must be the tokenizer's, and is believed where the tokenizer
            has none and for token files as they are.
        progress: Shows a bar on a terminal while something is prepared.
        substitute: Whether a corpus that cannot be fetched is replaced, with a warning.

    Raises:
        DataError: for anything that cannot be used, naming file, place and remedy.
    """
    if config.path is not None:
        folder = _prepared_by_user(config)
        if folder is not None:
            return _agreeing(_open_prepared(folder, config), eos_token_id)
        if holds_tokens(config, config.path):
            return open_raw(config, eos_token_id, progress)
    cache = cache_folder(config.cache_dir)
    source = open_source(config, cache)
    try:
        folder = _prepare(config, source, cache, eos_token_id, progress)
    except UnreachableError as error:
        named = config.path is not None or config.dataset is not None
        if named or config.tokenizer == "gpt2" or not substitute:
            raise
        folder = _prepare(
            config, fallback(source.name, error, cache), cache, eos_token_id, progress
        )
    return _agreeing(_open_prepared(folder, config), eos_token_id)


def prepare_files(
    config: DataConfig,
    destination: str | Path,
    *,
    eos_token_id: int | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Writes the prepared token files to the folder `destination` and returns their description.

    The folder can be named by data.path, and its train.npy and validation.npy by an OLMo YAML.

    Raises:
        DataError: where the source already is tokens, or `destination` holds something else.
    """
    if config.path is not None and (_prepared_by_user(config) or holds_tokens(config, config.path)):
        raise DataError(f"data.path={config.path} already holds token files. Use them as they are.")
    target = Path(destination).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists and is not an empty folder. Name another destination.")
    data = open_data(config, eos_token_id=eos_token_id, progress=progress)
    folder = data.train.files[0].path.parent
    with exclusive(target.parent) as temporary:
        shutil.copytree(folder, temporary / "files")
        if target.exists():
            target.rmdir()
        publish(temporary / "files", target)
    return read_description(target)


def _prepare(
    config: DataConfig, source: Source, cache: Path, eos_token_id: int | None, progress: bool
) -> Path:
    validation = None
    if config.validation_path is not None:
        validation = file_source(config.validation_path, "data.validation_path", config)
        refuse_overlap(config)
    identity = {
        "schema": SCHEMA,
        "source": source.identity,
        "validation": validation.identity if validation else config.validation_fraction,
        "tokenizer": tokenizer_identity(config, eos_token_id),
        "dtype": config.dtype,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in source.name)[:40]
    folder = cache / "tokens" / f"{name}-{key}"
    if is_prepared(folder):
        return folder
    with (
        locked(cache, f"tokens-{key}"),
        shown_bar(progress, f"preparing {source.name}") as on_bytes,
    ):
        if is_prepared(folder):
            return folder
        if folder.exists():  # damaged: somebody cut a file short
            shutil.rmtree(folder)
        split = split_documents(source, config.validation_fraction, validation)
        tokenizer, serialised = choose_tokenizer(config, split.train, cache, eos_token_id)
        with exclusive(folder.parent) as temporary:
            files = temporary / "files"
            files.mkdir()
            write_prepared(
                files,
                name=source.name,
                split=split,
                tokenizer=tokenizer,
                serialised=serialised,
                dtype=config.dtype or smallest_dtype(tokenizer.vocab_size),
                on_bytes=on_bytes,
            )
            publish(files, folder)
    return folder


def _open_prepared(folder: Path, config: DataConfig) -> Data:
    description = read_description(folder)
    streams = {}
    for side in ("train", "validation"):
        path, facts = folder / f"{side}.npy", description[side]
        status = path.stat()
        streams[side] = TokenStream(
            [
                TokenFile(
                    path=path,
                    dtype=description["dtype"],
                    start=0,
                    stop=facts["tokens"],
                    size=status.st_size,
                    mtime_ns=status.st_mtime_ns,
                    largest=facts["largest"],
                    sha256=facts["sha256"],
                )
            ]
        )
    token_bytes = None
    if description["exact_bytes"]:
        token_bytes = np.fromfile(folder / "token_bytes.bin", dtype="<u2").astype(np.int32)
    tokenizer_path = folder / "tokenizer.json"
    return Data(
        name=description["name"],
        train=streams["train"],
        held_out=streams["validation"],
        vocab_size=description["vocab_size"],
        eos_token_id=description["eos_token_id"],
        pad_token_id=description["pad_token_id"],
        token_bytes=token_bytes,
        fingerprint=description["fingerprint"],
        document_masking=config.document_masking,
        tokenizer_name=description["tokenizer"],
        tokenizer_source=tokenizer_path if tokenizer_path.exists() else None,
    )


def _prepared_by_user(config: DataConfig) -> Path | None:
    """data.path where it names a folder that `prepare_files` wrote."""
    if not isinstance(config.path, str):
        return None
    folder = Path(config.path).expanduser().absolute()
    if not ((folder / DESCRIPTION).is_file() and (folder / "train.npy").is_file()):
        return None
    for field, value in (("validation_path", config.validation_path), ("dtype", config.dtype)):
        if value is not None:
            raise DataError(
                f"data.{field}={value}: data.path={config.path} is a prepared folder, which has "
                f"its own. Set data.{field} to null, or name {folder / 'train.npy'} itself."
            )
    return folder


def _agreeing(data: Data, eos_token_id: int | None) -> Data:
    if eos_token_id not in (None, data.eos_token_id):
        raise DataError(
            f"model.eos_token_id={eos_token_id}, but the documents of this data end with token "
            f"{data.eos_token_id} (data.tokenizer={data.tokenizer_name}). Set "
            f"{data.of_model()}, or a larger vocabulary."
        )
    return data
