"""Validation under noise, and the text of another domain in the tokens of the training data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ablate.config.schema import DataConfig
from ablate.data import IGNORED, Data, open_data, open_shifted, prepare_files
from ablate.data.corrupted import BLOCK, CorruptedStream, corrupted_validation
from ablate.errors import DataError

SHARE = 0.15


def inputs(data: Data, length: int, rows: int, tokens: int = 4000, seed: int = 5) -> np.ndarray:
    """The corrupted text, put together again from its windows."""
    batches = corrupted_validation(data, length, tokens, batch_size=rows, share=SHARE, seed=seed)
    return np.concatenate([b.input_ids[:, :-1].ravel() for b in batches])[: tokens - 1]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.txt"
    path.write_text("\n\n".join(f"x{i} = {i * i} + {i} * 7" for i in range(2000)))
    return path


def test_noise_is_the_same_however_the_text_is_cut(config: DataConfig) -> None:
    data = open_data(replace(config, validation_fraction=0.5))
    first = inputs(data, 64, 16)
    assert np.array_equal(first, inputs(data, 33, 3))
    assert not np.array_equal(first, inputs(data, 64, 16, seed=6))
    clean = data.held_out.read(0, 3999)
    assert np.mean(first != clean) == pytest.approx(SHARE, abs=0.03)
    assert set(first) <= set(data.held_out.read(0, 4000))
    assert np.array_equal(first == data.eos_token_id, clean == data.eos_token_id)


def test_labels_bytes_and_documents_stay_those_of_the_text(config: DataConfig) -> None:
    data = open_data(replace(config, validation_fraction=0.5, document_masking=True))
    noisy = list(corrupted_validation(data, 64, 4000, share=SHARE, seed=5))
    for clean, other in zip(data.validation(64, 4000), noisy, strict=True):
        assert np.array_equal(clean.labels, other.labels)
        assert np.array_equal(clean.doc_lens, other.doc_lens)  # pyright: ignore[reportArgumentType]
        assert clean.bytes == other.bytes
        real = clean.labels != IGNORED
        assert np.mean(clean.input_ids[:, 1:][real] != other.input_ids[:, 1:][real]) > 0.05


def test_a_stretch_is_drawn_as_in_the_whole(tmp_path: Path, config: DataConfig) -> None:
    (tmp_path / "long.txt").write_text("\n\n".join(f"{i} lorem" for i in range(20000)))
    data = open_data(replace(config, path=str(tmp_path / "long.txt")))
    n = len(data.train)
    assert n > 2 * BLOCK
    stream = CorruptedStream(data.train, SHARE, seed=1, tokens=n, eos=256)
    whole = stream.read(0, n)
    assert len(whole) == n
    for start, stop in ((BLOCK - 9, BLOCK + 9), (5, 2 * BLOCK + 5), (n - 3, n), (7, 7)):
        assert np.array_equal(stream.read(start, stop), whole[start:stop])


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_another_text_is_in_the_tokens_of_the_training(
    config: DataConfig, other: Path, tokenizer: str
) -> None:
    config = replace(config, tokenizer=tokenizer, tokenizer_vocab_size=300)
    data = open_data(config)
    shifted = open_shifted(str(other), config, data)
    text = data.tokenizer().decode(shifted.held_out.read(0, len(shifted.held_out)))
    assert len(text) == len(other.read_text())
    assert all(f"x{i} = {i * i} + {i} * 7" in text for i in (0, 999, 1999))
    assert shifted.vocab_size == data.vocab_size


def test_what_is_no_other_text_is_refused(config: DataConfig, folder: Path) -> None:
    data = open_data(config)
    with pytest.raises(DataError, match=r"evaluate.shifted_data=nowhere: there is no such corpus"):
        open_shifted("nowhere", config, data)
    (folder.parent / "linked.txt").symlink_to(next(folder.iterdir()))
    with pytest.raises(DataError, match=r"belongs to data.path too"):
        open_shifted(str(folder.parent / "linked.txt"), config, data)
    with pytest.raises(DataError, match=r"belongs to data.path too"):
        open_shifted(str(next(folder.glob("*.txt"))), config, data)
    prepare_files(config, folder.parent / "prepared")
    with pytest.raises(DataError, match="is the text that is trained on"):
        open_shifted(str(folder.parent / "prepared"), config, data)


def test_other_or_unknown_tokenizers_are_refused(
    config: DataConfig, other: Path, tmp_path: Path
) -> None:
    data = open_data(config)
    bpe = replace(config, path=str(other), tokenizer="bpe", tokenizer_vocab_size=300)
    prepare_files(bpe, tmp_path / "bpe")
    with pytest.raises(DataError, match="are not known to be those of the training data"):
        open_shifted(str(tmp_path / "bpe"), config, replace(data, eos_token_id=None))
    with pytest.raises(DataError, match=r"evaluate.shifted_data=.*model.eos_token_id"):
        open_shifted(str(tmp_path / "bpe"), config, data)
    np.arange(250, dtype=np.uint16).tofile(tmp_path / "raw.npy")
    with pytest.raises(DataError, match="are not known to be those of the training data"):
        open_shifted(str(tmp_path / "raw.npy"), config, data)
    raw = replace(config, path=str(tmp_path / "raw.npy"), validation_fraction=0.5)
    with pytest.raises(DataError, match=r"tokenizer of the training data .* is not known"):
        open_shifted(str(other), raw, open_data(raw))
