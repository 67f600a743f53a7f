"""Where the text comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ablate.config.typed import check_types, require

__all__ = ["DataConfig", "held_out"]

TEXT = ("corpus", "path", "dataset", "dataset_split", "text_field", "format", "validation_fraction")
"""Fields that say which text there is, and how much of it is held out."""


def held_out(section: Mapping[str, Any]) -> tuple[Any, ...]:
    """What says which text is held out: sections `data` with the same have the same."""
    given = section["validation_path"]
    return (given,) if given is not None else (None, *(section[name] for name in TEXT))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    corpus: str | None = "kjv"
    """A named corpus (kjv, asv, django_docs, botocore, stdlib); null where `path` or `dataset`
    is given.
    """
    path: str | list[str] | None = None
    """Text, JSONL or headerless token files, or folders of them."""
    dataset: str | None = None
    """A Hugging Face dataset name (needs the network and the `datasets` package)."""
    dataset_split: str = "train"
    text_field: str = "text"
    """The field of JSONL and dataset records that holds the text."""
    format: Literal["auto", "text", "jsonl", "tokens"] = "auto"
    dtype: Literal["uint8", "uint16", "uint32", "uint64"] | None = None
    """Of token files as they are; null: uint16 where the vocabulary fits, else uint32."""
    tokenizer: str = "bytes"
    """bytes, bpe, or the path of a tokenizer.json."""
    tokenizer_vocab_size: int = 4096
    """Vocabulary of a BPE trained on the training split (tokenizer=bpe)."""
    validation_fraction: float = 0.05
    """Share of documents held out; which ones depends on the documents alone."""
    validation_path: str | list[str] | None = None
    """Held-out files of your own instead."""
    cache_dir: str | None = None
    """Where prepared token files lie; null: $ABLATE_CACHE or ~/.cache/ablate."""
    document_masking: bool = False
    """Attention stays inside documents."""

    def __post_init__(self) -> None:
        check_types(self, "data")
        for name in ("corpus", "path", "dataset", "tokenizer", "validation_path", "cache_dir"):
            value = getattr(self, name)
            given = value if isinstance(value, list) else [value]
            # An unset variable of a script; the path "" would be the current folder.
            empty = any(isinstance(v, str) and not v.strip() for v in given)
            require(not empty, f"data.{name}", value, "is empty", "Name one, or leave it out")
        f = self.validation_fraction
        require(0 < f < 1, "data.validation_fraction", f, "must lie in (0, 1)")
        v = self.tokenizer_vocab_size
        require(
            v >= 257, "data.tokenizer_vocab_size", v, "must be at least 257 (256 bytes and EOS)"
        )
        sources = {"corpus": self.corpus, "path": self.path, "dataset": self.dataset}
        named = [k for k, v in sources.items() if v is not None]
        require(
            bool(named),
            "data.path",
            None,
            "there is no data",
            "Set data.corpus, data.path or data.dataset",
        )
        if self.path is not None or self.dataset is not None:
            require(
                self.path is None or self.dataset is None,
                "data.path",
                self.path,
                "contradicts data.dataset",
                "Set one of them to null",
            )

    def check_vocabulary(self, model: Mapping[str, Any]) -> None:
        """Of text that is to be tokenised, by a tokenizer whose vocabulary is known beforehand.

        Raises:
            ConfigError: for a model with fewer tokens, or another end of a document.
        """
        known = {"bytes": (257, 256), "bpe": (self.tokenizer_vocab_size, 0), "gpt2": (50257, 50256)}
        if self.tokenizer not in known:
            return
        (tokens, eos), said = known[self.tokenizer], f"data.tokenizer={self.tokenizer}"
        size, end = model.get("vocab_size"), model.get("eos_token_id")
        lower = " (or a lower data.tokenizer_vocab_size)" if self.tokenizer == "bpe" else ""
        remedy = f"Set model.vocab_size={tokens}{lower} and model.eos_token_id={eos}"
        if isinstance(size, int):
            reason = f"is too small: {said} makes {tokens} tokens"
            require(size >= tokens, "model.vocab_size", size, reason, remedy)
        reason = f"ends no document: with {said} token {eos} does"
        require(end in (None, eos), "model.eos_token_id", end, reason, remedy)
