from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ablate.config.schema import DataConfig
from ablate.data import open_data, prepare_files
from ablate.data.glance import glance
from ablate.data.opening import open_data as opened
from ablate.data.texts import PASSAGE, text_documents
from ablate.errors import DataError


def held_out_texts(config: DataConfig) -> set[str]:
    data = open_data(config)
    tokens = data.held_out.read(0, len(data.held_out))
    ends = np.flatnonzero(tokens == data.eos_token_id) + 1
    return {data.tokenizer().decode(d) for d in np.split(tokens, ends) if len(d)}


def write_jsonl(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": t, "id": i}) + "\n" for i, t in enumerate(texts)))
    return str(path)


def test_prepared_files_are_byte_identical_with_a_plain_writer(
    folder: Path, texts: list[str]
) -> None:
    """OLMo's format: raw little-endian tokens, EOS behind each document, nothing else."""
    data = open_data(DataConfig(path=str(folder), validation_fraction=0.1))
    held_out = held_out_texts(DataConfig(path=str(folder), validation_fraction=0.1))
    expected = b""
    for text in (t for t in texts if t not in held_out):
        expected += np.array([*text.encode(), 256], dtype="<u2").tobytes()
    assert data.train.files[0].path.read_bytes() == expected
    assert 0 < len(held_out) < len(texts) / 2


def test_a_glance_counts_the_end_of_each_passage_of_a_text(tmp_path: Path) -> None:
    """A byte tokenizer makes as many tokens as there are bytes, and ends each passage."""
    (tmp_path / "long.txt").write_text(("x" * (PASSAGE - 2) + "\n\n") * 6 + "the end\n")
    (tmp_path / "held.txt").write_text("held out\n")
    config = DataConfig(
        path=str(tmp_path / "long.txt"),
        validation_path=str(tmp_path / "held.txt"),
        tokenizer="bytes",
    )
    most = len(open_data(config).train)
    assert most == (tmp_path / "long.txt").stat().st_size + 7
    glance(config, most)
    with pytest.raises(DataError, match=f"at most {most} tokens"):
        glance(config, most + 1)


def test_what_is_held_out_depends_on_the_documents_alone(tmp_path: Path, texts: list[str]) -> None:
    shuffled = texts.copy()
    random.Random(1).shuffle(shuffled)
    a = held_out_texts(DataConfig(path=write_jsonl(tmp_path / "a.jsonl", texts)))
    b = held_out_texts(DataConfig(path=write_jsonl(tmp_path / "b.jsonl", shuffled)))
    fewer = held_out_texts(DataConfig(path=write_jsonl(tmp_path / "c.jsonl", texts[::2])))
    more = held_out_texts(
        DataConfig(path=str(tmp_path / "a.jsonl"), validation_fraction=0.3, tokenizer="bytes")
    )
    assert a == b
    assert fewer == a & set(texts[::2])
    assert a < more
    doubled = write_jsonl(tmp_path / "d.jsonl", texts + texts)
    assert held_out_texts(DataConfig(path=doubled)) == a


def test_the_fingerprint_is_that_of_the_tokens(tmp_path: Path, texts: list[str]) -> None:
    a = open_data(DataConfig(path=write_jsonl(tmp_path / "a.jsonl", texts)))
    b = open_data(DataConfig(path=write_jsonl(tmp_path / "b.jsonl", texts)))
    c = open_data(DataConfig(path=write_jsonl(tmp_path / "c.jsonl", texts[:-1])))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert len(a.fingerprint) == 64


def test_text_jsonl_and_gzip_hold_the_same_documents(
    tmp_path: Path, folder: Path, texts: list[str]
) -> None:
    jsonl = write_jsonl(tmp_path / "a.jsonl", texts)
    zipped = tmp_path / "b.jsonl.gz"
    zipped.write_bytes(gzip.compress(Path(jsonl).read_bytes()))
    prints = {open_data(DataConfig(path=p)).fingerprint for p in (str(folder), jsonl, str(zipped))}
    assert len(prints) == 1


def test_one_long_text_is_cut_at_blank_lines_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = [("λ word " * 100).strip() + f" {i}" for i in range(200)]
    text = "\n\n".join(paragraphs)
    path = tmp_path / "long.txt"
    path.write_text("\ufeff" + text, encoding="utf-8")
    passages = list(text_documents(path, whole=False))
    assert "".join(passages) == text
    assert all(p.endswith("\n\n") for p in passages[:-1])
    assert len(passages) > 5
    data = open_data(DataConfig(path=str(path)))
    assert len(data.held_out) > 1000


def test_a_text_without_line_ends_is_cut_between_characters(tmp_path: Path) -> None:
    text = "a" + "神🙂λ" * 40_000
    path = tmp_path / "one_line.txt"
    path.write_text(text, encoding="utf-8")
    passages = list(text_documents(path, whole=False))
    assert "".join(passages) == text
    assert len(passages) > 3


def test_few_documents_still_give_a_validation_split(tmp_path: Path) -> None:
    for order in (["one " * 50, "two " * 50], ["two " * 50, "one " * 50]):
        config = DataConfig(
            path=write_jsonl(tmp_path / "few.jsonl", order), validation_fraction=1e-9
        )
        assert len(held_out_texts(config)) == 1
        first = held_out_texts(config)
    assert held_out_texts(config) == first


def test_held_out_files_of_the_users_own(tmp_path: Path, folder: Path, texts: list[str]) -> None:
    own = write_jsonl(tmp_path / "own.jsonl", ["entirely other text"] * 3)
    data = open_data(DataConfig(path=str(folder), validation_path=own))
    assert len(data.held_out) == 3 * (len("entirely other text") + 1)
    assert len(data.train) == sum(len(t.encode()) + 1 for t in texts)


def test_a_second_opening_reads_nothing_again(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_data(config)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("prepared twice")

    monkeypatch.setattr("ablate.data.opening.write_prepared", refuse)
    assert opened(config).fingerprint == first.fingerprint


def test_changed_files_are_prepared_anew(config: DataConfig, folder: Path) -> None:
    first = open_data(config)
    (folder / "new.txt").write_text("something else " * 20)
    assert open_data(config).fingerprint != first.fingerprint


def test_a_damaged_cache_is_repaired(config: DataConfig) -> None:
    first = open_data(config)
    path = first.train.files[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    again = open_data(config)
    assert again.train.files[0].path.read_bytes() == content
    path.with_name("data.json").write_text("{")
    assert open_data(config).fingerprint == first.fingerprint


def test_an_interrupted_preparation_leaves_nothing_behind(
    config: DataConfig, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ablate.data.prepared.write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_data(config)
    assert list((cache / "tokens").iterdir()) == []
    open_data(config)


SCRIPT = """
import sys
from ablate.config.schema import DataConfig
from ablate.data import open_data
data = open_data(DataConfig(path=sys.argv[1], tokenizer="bpe", tokenizer_vocab_size=400))
batch = data.batch(3, seed=1, batch_size=4, sequence_length=32)
print(data.fingerprint, len(data.train), batch.input_ids.sum())
assert "torch" not in sys.modules
"""


def test_processes_that_prepare_at_once_agree_and_leave_one_result(
    folder: Path, cache: Path
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1
    assert len(list((cache / "tokens").iterdir())) == 1


def test_prepare_writes_a_folder_that_can_be_named(config: DataConfig, tmp_path: Path) -> None:
    description = prepare_files(config, tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"train.npy", "validation.npy", "token_bytes.bin", "data.json"}
    direct, named = open_data(config), open_data(DataConfig(path=str(tmp_path / "out")))
    assert named.fingerprint == direct.fingerprint == description["fingerprint"]
    assert named.vocab_size == 257
    assert named.eos_token_id == 256
    assert named.tokenizer().decode([104, 105]) == "hi"


def test_importing_the_package_imports_no_heavy_library() -> None:
    heavy = "{'torch', 'pandas', 'hydra', 'tokenizers', 'datasets', 'transformers', 'tqdm'}"
    code = f"import sys, ablate.data; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
