"""From a DataConfig to Data: prepared once and cached, opened in a millisecond ever after."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ablate.config.schema import DataConfig
from ablate.data.cache import cache_folder, exclusive, locked, publish
from ablate.data.corpora import GPT2_VOCABULARY
from ablate.data.dataset import Data
from ablate.data.fetch import UnreachableError, fetch
from ablate.data.prepared import (
    DESCRIPTION,
    SCHEMA,
    is_prepared,
    read_description,
    split_documents,
    write_prepared,
)
from ablate.data.raw import open_token_files
from ablate.data.sources import Source, fallback, file_source, open_source
from ablate.data.texts import find_files
from ablate.data.tokenizers import ByteTokenizer, JsonTokenizer, Tokenizer, gpt2_json, train_bpe
from ablate.data.tokens import TokenFile, TokenStream, smallest_dtype
from ablate.errors import DataError

__all__ = ["open_data", "prepare_files"]

OnBytes = Callable[[int], object] | None


def open_data(
    config: DataConfig, *, eos_token_id: int | None = None, progress: bool = False
) -> Data:
    """The data that `config` names; downloads, tokenises and checks what was not yet.

    Safe for several processes at once: one prepares, the others wait and use its result.

    Args:
        config: The `data` section.
        eos_token_id: The token that ends documents, where neither tokenizer nor folder says it.
        progress: Shows a bar on a terminal while something is prepared.

    Raises:
        DataError: for anything that cannot be used, naming file, place and remedy.
    """
    if config.path is not None:
        folder = _prepared_by_user(config)
        if folder is not None:
            return _open_prepared(folder, config)
        if _holds_tokens(config):
            return _open_raw(config, eos_token_id, progress)
    cache = cache_folder(config.cache_dir)
    source = open_source(config, cache)
    try:
        folder = _prepare(config, source, cache, eos_token_id, progress)
    except UnreachableError as error:
        if config.path is not None or config.dataset is not None or config.tokenizer == "gpt2":
            raise
        folder = _prepare(
            config, fallback(source.name, error, cache), cache, eos_token_id, progress
        )
    return _open_prepared(folder, config)


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
    if config.path is not None and (_prepared_by_user(config) or _holds_tokens(config)):
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
        _refuse_overlap(config)
    identity = {
        "schema": SCHEMA,
        "source": source.identity,
        "validation": validation.identity if validation else config.validation_fraction,
        "tokenizer": _tokenizer_identity(config, eos_token_id),
        "dtype": config.dtype,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in source.name)[:40]
    folder = cache / "tokens" / f"{name}-{key}"
    if is_prepared(folder):
        return folder
    with locked(cache, f"tokens-{key}"), _bar(progress, f"preparing {source.name}") as on_bytes:
        if is_prepared(folder):
            return folder
        if folder.exists():  # damaged: somebody cut a file short
            shutil.rmtree(folder)
        split = split_documents(source, config.validation_fraction, validation)
        tokenizer, serialised = _tokenizer(config, split.train, cache, eos_token_id)
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
        tokenizer_path=tokenizer_path if tokenizer_path.exists() else None,
    )


def _open_raw(config: DataConfig, eos_token_id: int | None, progress: bool) -> Data:
    assert config.path is not None
    cache = cache_folder(config.cache_dir)
    tokenizer: Tokenizer | None = None
    if config.tokenizer not in (
        "bytes",
        "bpe",
    ):  # of the two others, the files cannot tell anything
        tokenizer, _ = _tokenizer(config, None, cache, eos_token_id)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        eos_token_id = tokenizer.eos_token_id
    dtype = config.dtype or (smallest_dtype(tokenizer.vocab_size) if tokenizer else "uint16")
    own = config.validation_path
    if own is not None:
        _refuse_overlap(config)
    with _bar(progress, "checking token files") as on_bytes:
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
        tokenizer_path=Path(config.tokenizer).expanduser()
        if tokenizer and config.tokenizer != "gpt2"
        else None,
    )


def _prepared_by_user(config: DataConfig) -> Path | None:
    """data.path where it names a folder that `prepare_files` wrote."""
    if not isinstance(config.path, str):
        return None
    folder = Path(config.path).expanduser().absolute()
    return folder if (folder / DESCRIPTION).is_file() and (folder / "train.npy").is_file() else None


def _holds_tokens(config: DataConfig) -> bool:
    assert config.path is not None
    return "tokens" in {
        kind for kind, _ in find_files(config.path, "data.path", config.format).values()
    }


def _refuse_overlap(config: DataConfig) -> None:
    if config.path is None or config.validation_path is None:
        return
    shared = set(find_files(config.path, "data.path", config.format)) & set(
        find_files(config.validation_path, "data.validation_path", config.format)
    )
    if shared:
        raise DataError(
            f"data.validation_path: {min(shared)} is also trained on (data.path). Held-out files "
            "must be others."
        )


def _tokenizer_identity(config: DataConfig, eos_token_id: int | None) -> Any:
    if config.tokenizer == "bytes":
        return "bytes"
    if config.tokenizer == "bpe":
        return ["bpe", config.tokenizer_vocab_size]
    if config.tokenizer == "gpt2":
        return ["gpt2", GPT2_VOCABULARY.sha256]
    return [hashlib.sha256(_read_tokenizer(config.tokenizer).encode()).hexdigest(), eos_token_id]


def _tokenizer(
    config: DataConfig,
    train: Callable[[], Iterator[str]] | None,
    cache: Path,
    eos_token_id: int | None,
) -> tuple[Tokenizer, str | None]:
    """The tokenizer and its tokenizer.json, if any; a BPE is trained on the texts of `train`."""
    if config.tokenizer == "bytes":
        return ByteTokenizer(), None
    if config.tokenizer == "bpe":
        assert train is not None
        text = train_bpe(train(), config.tokenizer_vocab_size)
        return JsonTokenizer("bpe", text), text
    if config.tokenizer == "gpt2":
        text = gpt2_json(fetch(GPT2_VOCABULARY, cache))
        return JsonTokenizer("gpt2", text), text
    text = _read_tokenizer(config.tokenizer)
    tokenizer = JsonTokenizer(config.tokenizer, text)
    if tokenizer.eos_token_id is None and eos_token_id is not None:
        tokenizer = JsonTokenizer(config.tokenizer, text, eos_token_id)
    return tokenizer, text


def _read_tokenizer(name: str) -> str:
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"data.tokenizer={name}: cannot read it ({reason}). Known: bytes, bpe, gpt2, or the "
            "path of a tokenizer.json."
        ) from None


@contextlib.contextmanager
def _bar(progress: bool, title: str) -> Iterator[OnBytes]:
    """A callback for bytes done, shown as a bar where standard error is a terminal."""
    if not (progress and sys.stderr.isatty()):
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=title, unit="B", unit_scale=True, leave=False) as bar:
        yield bar.update
