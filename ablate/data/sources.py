"""Where documents come from: a named corpus, files of the user's, a Hugging Face dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.config.schema import DataConfig
from ablate.data.corpora import Corpus, find_corpus
from ablate.data.fetch import UnreachableError, fetch
from ablate.data.texts import find_files, jsonl_documents, text_documents, well_formed
from ablate.errors import DataError

__all__ = ["Source", "corpus_source", "file_source", "open_source"]


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    identity: Any
    """What the documents depend on, as plain JSON types: the cache's key."""
    documents: Callable[[], Iterator[str]]
    """Reads all documents, in the same order each time."""


def open_source(config: DataConfig, cache: Path) -> Source:
    """The training documents that `config` names (path before dataset before corpus)."""
    if config.path is not None:
        return file_source(config.path, "data.path", config)
    if config.dataset is not None:
        return _dataset_source(config.dataset, config)
    assert config.corpus is not None
    return corpus_source(find_corpus(config.corpus), cache)


def corpus_source(corpus: Corpus, cache: Path) -> Source:
    """A named corpus; its archive is fetched when the documents are asked for."""
    kept: list[str] = []  # cutting takes seconds, and a corpus is small

    def documents() -> Iterator[str]:
        if not kept:
            kept.extend(corpus.cut(fetch(corpus.archive, cache) if corpus.archive else None))
        return iter(kept)

    return Source(name=corpus.name, identity=[corpus.name, corpus.identity()], documents=documents)


def fallback(failed: str, reason: UnreachableError, cache: Path) -> Source:
    """The corpus that needs no download, announced loudly."""
    warnings.warn(
        f"data.corpus={failed} could not be fetched, so data.corpus=stdlib is used INSTEAD: the "
        "docstrings of this Python, which differ between Python versions. Do not compare these "
        f"losses with those of {failed}. Reason: {reason}",
        stacklevel=2,
    )
    return corpus_source(find_corpus("stdlib"), cache)


def file_source(paths: str | Sequence[str], field: str, config: DataConfig) -> Source:
    """Text and JSONL files, or folders of them."""
    files = find_files(paths, field, config.format)
    if "tokens" in {kind for kind, _ in files.values()}:
        raise DataError(
            f"{field}={paths}: these are token files, but the training data is text. Name text or "
            "JSONL files."
        )
    stats = {path: path.stat() for path in files}

    def documents() -> Iterator[str]:
        for path, (kind, direct) in files.items():
            if kind == "jsonl":
                yield from jsonl_documents(path, config.text_field)
            else:
                yield from text_documents(path, whole=not direct)

    return Source(
        name=Path(paths if isinstance(paths, str) else paths[0]).name,
        identity=[
            [
                str(path),
                kind,
                direct,
                stats[path].st_size,
                stats[path].st_mtime_ns,
                config.text_field,
            ]
            for path, (kind, direct) in files.items()
        ],
        documents=documents,
    )


def _dataset_source(name: str, config: DataConfig) -> Source:
    """A Hugging Face dataset, `owner/name` or `owner/name:configuration`."""

    def documents() -> Iterator[str]:
        for number, record in enumerate(_load_dataset(name, config.dataset_split)):
            text = record.get(config.text_field)
            if not isinstance(text, str):
                raise DataError(
                    f"data.dataset={name}: record {number} has no text in the field "
                    f"{config.text_field!r} (it has: {', '.join(record)}). Set data.text_field."
                )
            yield well_formed(text)

    return Source(
        name=name.rsplit("/", 1)[-1].replace(":", "-"),
        identity=["dataset", name, config.dataset_split, config.text_field],
        documents=documents,
    )


def _load_dataset(name: str, split: str) -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"data.dataset={name} needs the package datasets, which is not installed. Install it "
            "(pip install datasets), or use data.path or data.corpus."
        ) from None
    path, _, configuration = name.partition(":")
    try:
        return load_dataset(path, configuration or None, split=split)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise DataError(
            f"data.dataset={name} (split {split}) could not be loaded: {type(error).__name__}: "
            f"{first}. Check the name and the network, or use data.path or data.corpus."
        ) from None
