"""Which tokenizer a DataConfig names: bytes, bpe, gpt2, or the path of a tokenizer.json."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ablate.config.schema import DataConfig
from ablate.data.corpora import GPT2_VOCABULARY
from ablate.data.fetch import fetch
from ablate.data.tokenizers import ByteTokenizer, JsonTokenizer, Tokenizer, gpt2_json, train_bpe
from ablate.errors import DataError

__all__ = ["choose_tokenizer", "tokenizer_identity"]


def tokenizer_identity(config: DataConfig, eos_token_id: int | None) -> Any:
    """What the tokenizer depends on beside the training texts, as plain JSON types."""
    if config.tokenizer == "bytes":
        return "bytes"
    if config.tokenizer == "bpe":
        return ["bpe", config.tokenizer_vocab_size]
    if config.tokenizer == "gpt2":
        return ["gpt2", GPT2_VOCABULARY.sha256]
    return [hashlib.sha256(_read_tokenizer(config.tokenizer).encode()).hexdigest(), eos_token_id]


def choose_tokenizer(
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
