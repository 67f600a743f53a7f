"""Every mistake in the data is refused before training, with the place and the remedy."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ablate.config.schema import DataConfig
from ablate.data import open_data, prepare_files
from ablate.data.tokenizers import train_bpe
from ablate.errors import DataError


def refusal(config: DataConfig, vocab_size: int = 257, sequence_length: int = 32) -> str:
    with pytest.raises(DataError) as caught:
        open_data(config).check(vocab_size, sequence_length)
    message = str(caught.value)
    assert "\n" not in message
    return message


def tokens(path: Path, values: object, dtype: str = "<u2") -> str:
    np.asarray(values).astype(dtype).tofile(path)
    return str(path)


GOOD = np.arange(1000) % 200


def test_token_files_as_they_are(tmp_path: Path) -> None:
    for i, dtype in enumerate(("uint8", "uint16", "uint32", "uint64")):
        path = tokens(tmp_path / f"{i}.npy", GOOD, f"<u{1 << i}")
        data = open_data(DataConfig(path=path, dtype=dtype), eos_token_id=199)
        data.check(257, 32)
        assert len(data.train) == 800
        assert len(data.held_out) == 200
        assert data.vocab_size == 200
        assert np.array_equal(data.train.read(0, 800), GOOD[:800])


def test_dolmas_tables_beside_token_files_are_ignored(tmp_path: Path) -> None:
    tokens(tmp_path / "part-0-00000.npy", GOOD)
    (tmp_path / "part-0-00000.csv.gz").write_bytes(gzip.compress(b"0,5,a,b,1\n"))
    assert len(open_data(DataConfig(path=str(tmp_path))).train) == 950


def test_token_at_or_above_the_vocabulary(tmp_path: Path) -> None:
    values = GOOD.copy()
    values[123] = 257
    message = refusal(DataConfig(path=tokens(tmp_path / "a.npy", values)))
    assert "a.npy" in message
    assert "token 257 at position 123 (byte 246)" in message


def test_a_held_out_token_above_the_vocabulary_is_seen_too(tmp_path: Path) -> None:
    values = GOOD.copy()
    values[990] = 300
    assert "position 990" in refusal(DataConfig(path=tokens(tmp_path / "a.npy", values)))


def test_truncated_array(tmp_path: Path) -> None:
    path = Path(tokens(tmp_path / "a.npy", GOOD))
    path.write_bytes(path.read_bytes()[:-1])
    assert "1999 bytes are no multiple of 2" in refusal(DataConfig(path=str(path)))


def test_numpy_header(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GOOD.astype("<u2"))
    assert "numpy.save" in refusal(DataConfig(path=str(tmp_path / "a.npy")))
    os.rename(tmp_path / "a.npy", tmp_path / "a.unknown")
    assert "numpy.save" in refusal(DataConfig(path=str(tmp_path / "a.unknown")))


def test_uint32_read_as_uint16(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 100_000, 1000)
    path = tokens(tmp_path / "a.npy", values, "<u4")
    assert "data.dtype=uint32" in refusal(DataConfig(path=path), 100_278)
    open_data(DataConfig(path=path, dtype="uint32")).check(100_278, 32)


def test_uint16_read_as_uint32(tmp_path: Path) -> None:
    path = tokens(tmp_path / "a.npy", np.random.default_rng(0).integers(1, 50_000, 1000))
    assert "data.dtype" in refusal(DataConfig(path=path, dtype="uint32"), 50_304)


def test_empty_file(tmp_path: Path) -> None:
    for name in ("a.npy", "a.txt", "a.jsonl"):
        (tmp_path / name).touch()
        assert "is empty" in refusal(DataConfig(path=str(tmp_path / name)))


def test_missing_path(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(DataConfig(path=str(tmp_path / "none.txt")))


def test_empty_list() -> None:
    assert "empty list" in refusal(DataConfig(path=[]))


def test_folder_with_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / ".hidden.txt").write_text("x")
    assert "no file that can be used" in refusal(DataConfig(path=str(tmp_path)))


def test_mixed_kinds(tmp_path: Path) -> None:
    tokens(tmp_path / "a.npy", GOOD)
    (tmp_path / "a.txt").write_text("text")
    assert "mixed" in refusal(DataConfig(path=str(tmp_path)))
    assert len(open_data(DataConfig(path=str(tmp_path), format="tokens")).train) == 950


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst", "a.csv.gz"])
def test_foreign_kinds(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something")
    assert "not read" in refusal(DataConfig(path=str(tmp_path / name)))


def test_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n\n')
    assert "no documents" in refusal(DataConfig(path=str(tmp_path / "a.jsonl")))


def test_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    assert "data.validation_path" in refusal(DataConfig(path=str(tmp_path / "a.txt")))


def test_everything_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    path = str(tmp_path / "a.jsonl")
    message = refusal(DataConfig(path=path, validation_fraction=0.999999))
    assert "data.validation_fraction" in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"body": "x"}', "line 2 has no field 'text' (it has: body)"),
        ('["x"]', "line 2 has no field 'text' (it has: a list"),
        ('{"text": 3}', "line 2: the field 'text' holds a int"),
        ("{not json", "line 2 is not JSON"),
    ],
)
def test_jsonl_lines(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "fine"}) + "\n" + line + "\n")
    assert words in refusal(DataConfig(path=str(tmp_path / "a.jsonl")))


def test_jsonl_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    assert "line 2" in refusal(DataConfig(path=str(tmp_path / "a.jsonl")))


def test_text_that_is_not_utf8_names_the_offset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"word \n\n" * 5000 + b"caf\xe9")
    assert "offset 35003 is 0xe9" in refusal(DataConfig(path=str(tmp_path / "a.txt")))


def test_lone_surrogates_of_json_are_replaced(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"bad \ud800 {i} " * 20}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert "\ufffd" in open_data(DataConfig(path=str(tmp_path / "a.jsonl"))).tokenizer().decode(
        open_data(DataConfig(path=str(tmp_path / "a.jsonl"))).train.read(0, 30)
    )


def test_truncated_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"text": "x"}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-20])
    assert "cannot be read" in refusal(DataConfig(path=str(tmp_path / "a.jsonl.gz")))
    (tmp_path / "b.jsonl.gz").write_bytes(b"not gzip at all")
    assert "cannot be read" in refusal(DataConfig(path=str(tmp_path / "b.jsonl.gz")))


def test_too_short_for_one_sequence(config: DataConfig) -> None:
    message = refusal(config, sequence_length=10**6)
    assert "train.sequence_length=1000000" in message


def test_training_files_may_not_be_held_out(folder: Path) -> None:
    config = DataConfig(path=str(folder), validation_path=str(folder / "003.txt"))
    assert "also trained on" in refusal(config)


@pytest.mark.parametrize("link", [os.symlink, os.link, shutil.copy])
def test_another_name_for_training_text_does_not_make_it_held_out(
    link: Callable[..., object], folder: Path, tmp_path: Path
) -> None:
    link(folder / "003.txt", tmp_path / "other.txt")
    config = DataConfig(path=str(folder / "003.txt"), validation_path=str(tmp_path / "other.txt"))
    assert "also trained on" in refusal(config)
    raw = tokens(tmp_path / "a.npy", GOOD)
    link(raw, tmp_path / "b.npy")
    message = refusal(DataConfig(path=raw, validation_path=str(tmp_path / "b.npy")))
    assert "b.npy" in message
    assert "also trained on" in message


def test_held_out_documents_that_are_trained_on_too_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, texts in (("train", ["one", "two", "three"]), ("own", ["two", "four", "two"])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    path, own = str(tmp_path / "train.jsonl"), str(tmp_path / "own.jsonl")
    data = open_data(DataConfig(path=path, validation_path=own))
    assert "own.jsonl: 2 of its 3 documents are also trained on" in caplog.text
    assert len(data.held_out) == len("two four two ")


def test_eos_of_the_model_and_of_the_data_must_agree(config: DataConfig, tmp_path: Path) -> None:
    for named in (config, DataConfig(path=str(tmp_path / "out"))):
        with pytest.raises(DataError, match=r"Set model\.eos_token_id=256"):
            open_data(named, eos_token_id=50256)
        if named is config:
            prepare_files(config, tmp_path / "out")
    open_data(config, eos_token_id=256)


def test_settings_that_a_prepared_folder_would_ignore(config: DataConfig, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    prepare_files(config, path)
    assert "data.dtype=uint32" in refusal(DataConfig(path=path, dtype="uint32"))
    own = str(tmp_path / "texts" / "000.txt")
    assert "data.validation_path" in refusal(DataConfig(path=path, validation_path=own))


def test_tokens_of_another_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(train_bpe(["some text"] * 9, 300))
    raw = tokens(tmp_path / "a.npy", GOOD + 250)
    message = refusal(DataConfig(path=raw, tokenizer=str(path)), 50_000)
    assert "hold token 449" in message
    data = open_data(DataConfig(path=tokens(tmp_path / "b.npy", GOOD), tokenizer=str(tmp_path)))
    assert data.batch(1, seed=0, batch_size=2, sequence_length=8).bytes > 0
    assert data.tokenizer().decode(data.tokenizer().encode(["some text"])[0]) == "some text"


def test_text_beside_tokens(folder: Path, tmp_path: Path) -> None:
    path = tokens(tmp_path / "a.npy", GOOD)
    text = str(folder / "000.txt")
    assert "holds text" in refusal(DataConfig(path=path, validation_path=text))
    assert "token files" in refusal(DataConfig(path=str(folder), validation_path=path))
    assert "data.tokenizer=bpe" in refusal(DataConfig(path=path, tokenizer="bpe"))


def test_masking_without_a_known_eos(tmp_path: Path) -> None:
    path = tokens(tmp_path / "a.npy", GOOD)
    assert "model.eos_token_id" in refusal(DataConfig(path=path, document_masking=True))


def test_unknown_corpus() -> None:
    message = refusal(DataConfig(corpus="kvj"))
    assert "kjv" in message
    assert "stdlib" in message


def test_dtype_too_small_for_the_vocabulary(folder: Path) -> None:
    assert "data.dtype=uint8" in refusal(DataConfig(path=str(folder), dtype="uint8"))


def test_cache_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = DataConfig(path=str(folder), cache_dir=str(tmp_path / "file" / "cache"))
    assert "data.cache_dir" in refusal(config)


def test_datasets_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets" in refusal(DataConfig(dataset="owner/name"))


def test_dataset_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    stub = type(sys)("datasets")
    stub.load_dataset = offline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    message = refusal(DataConfig(dataset="owner/name"))
    assert "data.dataset=owner/name" in message
    assert "Couldn't reach the hub" in message


def test_a_dataset_gives_its_records(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    stub = type(sys)("datasets")
    calls: list[tuple[object, ...]] = []

    def load(*args: object, **kwargs: object) -> list[dict[str, str]]:
        calls.append((*args, kwargs["split"]))
        return [{"body": t} for t in texts]

    stub.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", stub)
    data = open_data(DataConfig(dataset="owner/name:config", text_field="body"))
    assert len(data.train) + len(data.held_out) == sum(len(t.encode()) + 1 for t in texts)
    assert calls[0] == ("owner/name", "config", "train")
    assert "data.text_field" in refusal(DataConfig(dataset="owner/name"))


def test_preparing_what_is_prepared_or_onto_something(tmp_path: Path, config: DataConfig) -> None:
    path = tokens(tmp_path / "a.npy", GOOD)
    with pytest.raises(DataError, match="already holds token files"):
        prepare_files(DataConfig(path=path), tmp_path / "out")
    with pytest.raises(DataError, match="not an empty folder"):
        prepare_files(config, tmp_path)


def test_nothing_is_left_in_the_cache_by_a_refusal(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "good"}\nbroken\n')
    refusal(DataConfig(path=str(tmp_path / "a.jsonl")))
    left: Callable[[], list[Path]] = lambda: [p for p in cache.rglob("*") if p.suffix != ".lock"]  # noqa: E731
    assert [p for p in left() if p.is_file()] == []
