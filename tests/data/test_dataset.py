from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ablate.config.schema import DataConfig
from ablate.data import IGNORED, Data, open_data
from ablate.data.tokens import TokenStream, inspect
from ablate.errors import DataError


def raw(path: Path, tokens: np.ndarray, dtype: str = "uint16") -> Path:
    tokens.astype(f"<u{np.dtype(dtype).itemsize}").tofile(path)
    return path


def stream(tmp_path: Path, sizes: list[int]) -> tuple[TokenStream, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 60000, size=n) for n in sizes]
    files = [inspect(raw(tmp_path / f"{i}.npy", a), "uint16") for i, a in enumerate(arrays)]
    return TokenStream(files), arrays


def data_of(train: TokenStream, held_out: TokenStream, **changes: object) -> Data:
    values = {
        "name": "test",
        "train": train,
        "held_out": held_out,
        "vocab_size": 60000,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "token_bytes": np.arange(60000, dtype=np.int32) % 5,
        "fingerprint": "",
    }
    return Data(**{**values, **changes})  # type: ignore[arg-type]


def test_sequences_are_consecutive_chunks_within_each_file(tmp_path: Path) -> None:
    tokens, arrays = stream(tmp_path, [1000, 63, 64, 130])
    assert tokens.sequences(64) == 15 + 0 + 1 + 2
    expected = [a[i : i + 64] for a in arrays for i in range(0, len(a) - 63, 64)]
    assert np.array_equal(tokens.rows(np.arange(18), 64), expected)
    shuffled = np.random.default_rng(1).permutation(18)
    assert np.array_equal(tokens.rows(shuffled, 64), np.array(expected)[shuffled])


def test_chunks_masks_and_document_lengths_are_olmos(tmp_path: Path) -> None:
    import olmo.config as config
    import olmo.data.memmap_dataset as module

    from ablate.data import document_lengths, repetitive

    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 9, size=5000), rng.integers(0, 9, size=1234)]
    arrays[0][300:900] = 5
    files = [raw(tmp_path / f"{i}.npy", a) for i, a in enumerate(arrays)]
    upstream = module.MemMapDataset(
        *files,
        chunk_size=128,
        memmap_dtype=np.uint16,
        generate_doc_lengths=True,
        eos_token_id=0,
        pad_token_id=0,
        instance_filter_config=config.InstanceFilterConfig(),
    )
    ours = TokenStream([inspect(f, "uint16") for f in files])
    assert ours.sequences(128) == len(upstream)
    rows = ours.rows(np.arange(len(upstream)), 128)
    lengths, _ = document_lengths(rows, 0)
    bad = repetitive(rows)
    for i in range(len(upstream)):
        item = upstream[i]
        assert item["input_ids"].tolist() == rows[i].tolist()
        assert item["doc_lens"].tolist() == lengths[i][lengths[i] > 0].tolist()
        assert item["instance_mask"] == (not bad[i])
    assert 0 < bad.sum() < len(bad)


def test_a_batch_is_a_pure_function_of_data_seed_and_step(config: DataConfig) -> None:
    first, second = open_data(config), open_data(config)
    kwargs = {"seed": 5, "batch_size": 8, "sequence_length": 32}
    straight = [first.batch(t, **kwargs).input_ids for t in range(1, 30)]
    for t in (29, 7, 1, 7):  # any order, another object
        assert np.array_equal(second.batch(t, **kwargs).input_ids, straight[t - 1])
    copy = pickle.loads(pickle.dumps(first))
    assert np.array_equal(copy.batch(3, **kwargs).input_ids, straight[2])


@pytest.mark.parametrize("world", [2, 4, 8])
def test_pain_34_a_batch_does_not_depend_on_the_world_size(config: DataConfig, world: int) -> None:
    data = open_data(config)
    kwargs = {"seed": 1, "batch_size": 8, "sequence_length": 32}
    for step in (1, 2, 11):
        whole = data.batch(step, **kwargs)
        share = 8 // world
        parts = [
            data.batch(step, **kwargs, rows=slice(r * share, (r + 1) * share)) for r in range(world)
        ]
        assert np.array_equal(np.concatenate([p.input_ids for p in parts]), whole.input_ids)
        assert sum(p.bytes for p in parts) == whole.bytes


def test_an_epoch_shows_every_sequence_once(config: DataConfig) -> None:
    data = open_data(config)
    n = data.sequences(32)
    steps = -(-n // 8)
    seen = [
        data.batch(t, seed=0, batch_size=8, sequence_length=32).indices for t in range(1, steps + 1)
    ]
    assert sorted(np.concatenate(seen)[:n].tolist()) == list(range(n))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(2, 300), st.integers(2, 70), st.integers(1, 9), st.none() | st.integers(2, 400))
def test_validation_predicts_every_token_but_the_first_exactly_once(
    tmp_path: Path, total: int, length: int, batch_size: int, limit: int | None
) -> None:
    rng = np.random.default_rng(total)
    ids = rng.integers(0, 60000, size=total)
    cut = total // 3
    files = [inspect(raw(tmp_path / "a.npy", ids[:cut]), "uint16")] if cut else []
    files.append(inspect(raw(tmp_path / "b.npy", ids[cut:]), "uint16"))
    data = data_of(TokenStream(files), TokenStream(files))
    batches = list(data.validation(length, limit, batch_size=batch_size))
    read = ids[:limit]
    predicted = np.concatenate([b.labels[b.labels != IGNORED] for b in batches])
    assert np.array_equal(predicted, read[1:])
    for batch in batches:
        assert batch.input_ids.shape[1] == length
        kept = batch.labels != IGNORED
        assert np.array_equal(batch.labels[kept], batch.input_ids[:, 1:][kept])
        assert batch.input_ids[:, 0].tolist() == [read[i * (length - 1)] for i in batch.indices]
    assert data.token_bytes is not None
    assert sum(b.bytes for b in batches) == data.token_bytes[read[1:]].sum()


def test_validation_bytes_are_those_of_the_held_out_text(config: DataConfig) -> None:
    """Exactly: all held-out UTF-8 bytes but those of the first token; EOS stands for none."""
    for tokenizer in ("bytes", "bpe"):
        data = open_data(
            DataConfig(
                path=config.path,
                validation_fraction=0.1,
                tokenizer=tokenizer,
                tokenizer_vocab_size=300,
            )
        )
        tokens = data.held_out.read(0, len(data.held_out))
        documents = np.split(tokens, np.flatnonzero(tokens == data.eos_token_id) + 1)
        text = "".join(data.tokenizer().decode(d) for d in documents)
        assert data.token_bytes is not None
        expected = len(text.encode()) - int(data.token_bytes[tokens[0]])
        assert sum(b.bytes for b in data.validation(64)) == expected


def test_document_masking_gives_lengths_that_cover_each_row(config: DataConfig) -> None:
    data = open_data(config)
    assert data.batch(1, seed=0, batch_size=4, sequence_length=64).doc_lens is None
    masked = data.with_document_masking(True)
    batches = [masked.batch(1, seed=0, batch_size=4, sequence_length=512)]
    for batch in [*batches, *masked.validation(512)]:
        assert batch.doc_lens is not None
        assert (batch.doc_lens.sum(axis=1) == 512).all()
        assert batch.max_doc_lens == batch.doc_lens.max(axis=1).tolist()
        assert batch.doc_lens.shape[1] > 1


def test_labels_can_be_masked_without_touching_the_inputs(config: DataConfig) -> None:
    batch = open_data(config).batch(1, seed=0, batch_size=4, sequence_length=64)
    before = batch.input_ids.copy()
    batch.labels[:] = IGNORED
    assert np.array_equal(batch.input_ids, before)


def test_unknown_bytes_are_reported_as_zero(tmp_path: Path) -> None:
    tokens, _ = stream(tmp_path, [500])
    data = data_of(tokens, tokens, token_bytes=None)
    assert data.batch(1, seed=0, batch_size=2, sequence_length=16).bytes == 0


def test_many_files_stay_within_the_limit_of_open_files(tmp_path: Path) -> None:
    tokens, arrays = stream(tmp_path, [40] * 600)
    rows = tokens.rows(np.arange(600), 32)
    assert np.array_equal(rows, [a[:32] for a in arrays])
    assert len(os.listdir("/proc/self/fd")) < 400


def test_reading_costs_nothing_beyond_the_batch(tmp_path: Path) -> None:
    """A sparse file of 64 GiB of tokens: opening and reading touch a few pages only."""
    path = tmp_path / "huge.npy"
    with open(path, "wb") as file:
        file.truncate(64 * 2**30)
    status = path.stat()
    from ablate.data.tokens import TokenFile

    huge = TokenFile(
        path=path,
        dtype="uint16",
        start=0,
        stop=status.st_size // 2,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        largest=0,
        sha256="",
    )
    data = data_of(TokenStream([huge]), TokenStream([huge]))
    batch = data.batch(10**6, seed=0, batch_size=64, sequence_length=1024)
    assert batch.input_ids.shape == (64, 1024)


def test_a_file_that_changes_under_a_run_is_noticed(tmp_path: Path) -> None:
    file = inspect(raw(tmp_path / "a.npy", np.arange(100)), "uint16")
    for changed in (replace(file, size=100), replace(file, mtime_ns=file.mtime_ns - 1)):
        with pytest.raises(DataError, match="changed since it was checked"):
            changed.tokens()
