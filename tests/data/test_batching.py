"""Batches of documents: each once an epoch, the same whenever asked for, with little padding."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.config.schema import BatchingConfig, DataConfig
from ablate.data import IGNORED, Batch, Data, open_data
from ablate.data.packing import pack
from ablate.errors import DataError

EOS, LENGTH, ROWS = 99, 32, 4


@pytest.fixture(scope="module")
def documents() -> list[np.ndarray]:
    """Of 1 to 70 tokens; each begins with two tokens that name it."""
    draw = np.random.default_rng(0)
    sizes = [*draw.integers(3, 12, 60), *draw.integers(12, 71, 20)]
    made = []
    for number, size in enumerate(sizes):
        body = draw.integers(0, 90, size)
        body[:2] = divmod(number, 90)
        made.append(np.append(body, EOS))
    return [np.array([EOS]), *made]  # one without anything to predict


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, documents: list[np.ndarray]) -> Data:
    folder = tmp_path_factory.mktemp("tokens")
    whole = np.concatenate(documents).astype(np.uint16)
    whole.tofile(folder / "train.npy")
    whole[:200].tofile(folder / "held.npy")
    return open_data(
        DataConfig(
            corpus=None, path=str(folder / "train.npy"), validation_path=str(folder / "held.npy"),
            format="tokens", dtype="uint16",
        ),
        eos_token_id=EOS,
    )  # fmt: skip


def batch(
    data: Data, step: int, *, seed: int = 0, rows: slice = slice(None), size: int = ROWS
) -> Batch:
    return data.batch(step, seed=seed, batch_size=size, sequence_length=LENGTH, rows=rows)


def contents(b: Batch) -> list[list[int]]:
    """The stretches of tokens that are predicted from one another, by their labels alone."""
    found = []
    for row, labels in zip(b.input_ids, b.labels, strict=True):
        at = 0
        for real, run in itertools.groupby((labels != IGNORED).tolist()):
            size = len(list(run))
            if real:
                found.append(row[at : at + size + 1].tolist())
            at += size
    return found


def epoch(data: Data, seed: int = 0, first: int = 1) -> list[Batch]:
    layout = data.layout(LENGTH)
    if data.batching.name == "dynamic":
        steps = len(layout._cuts(ROWS * LENGTH))
    else:
        steps = -(-len(layout.packed or layout.lengths) // ROWS)
    return [batch(data, first + i, seed=seed) for i in range(steps)]


def named(name: str, **fields: object) -> BatchingConfig:
    return BatchingConfig(name=name, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["padded", "packed", "dynamic"])
def test_an_epoch_holds_every_document_once(
    data: Data, documents: list[np.ndarray], name: str
) -> None:
    data = data.with_batching(named(name, cap=None))
    seen = [tuple(c) for b in epoch(data) for c in contents(b)]
    if name == "packed":
        wanted = [tuple(d[i : i + LENGTH]) for d in documents[1:] for i in range(0, len(d), LENGTH)]
        wanted = [w for w in wanted if len(w) > 1]
    else:
        wanted = [tuple(d[:LENGTH]) for d in documents[1:]]
    assert set(seen) == set(wanted)
    if name == "dynamic":  # the others fill the last batch from the next epoch
        assert len(seen) == len(wanted)


@pytest.mark.parametrize("name", ["padded", "packed", "dynamic"])
def test_a_batch_is_a_function_of_data_seed_and_step(data: Data, name: str) -> None:
    one, other = (data.with_batching(named(name)) for _ in range(2))
    for step in (7, 1, 300, 7):
        a, b = batch(one, step), batch(other, step)
        assert np.array_equal(a.input_ids, b.input_ids)
        assert np.array_equal(a.labels, b.labels)
    assert any(
        not np.array_equal(batch(one, s).indices, batch(one, s, seed=1).indices) for s in (1, 2, 3)
    )
    whole = batch(one, 5)
    parts = [batch(one, 5, rows=slice(i, i + 2)) for i in range(0, len(whole.input_ids), 2)]
    assert np.array_equal(np.concatenate([p.input_ids for p in parts]), whole.input_ids)
    assert sum(p.padding for p in parts) == whole.padding


def test_the_budget_is_kept_and_no_document_of_another_length_shares_a_batch(data: Data) -> None:
    made = data.with_batching(named("dynamic", cap=None, bucket=1.25))
    for b in epoch(made):
        assert b.input_ids.size <= ROWS * LENGTH
        sizes = [len(c) for c in contents(b)]
        assert max(sizes) <= 1.25**2 * min(sizes)


def test_dynamic_pads_less_than_padded_and_every_pad_is_counted(data: Data) -> None:
    share = {}
    for name in ("padded", "dynamic", "packed"):
        batches = epoch(data.with_batching(named(name, cap=None)))
        tokens = sum(len(c) for b in batches for c in contents(b))
        size = sum(b.input_ids.size for b in batches)
        assert sum(b.padding for b in batches) == size - tokens
        share[name] = 1 - tokens / size
    assert share["dynamic"] < share["padded"] / 2
    assert share["packed"] < share["padded"] / 2


def test_the_cap_cuts_and_says_what_it_cut(data: Data, documents: list[np.ndarray]) -> None:
    layout = data.with_batching(named("dynamic", cap=1.5)).layout(LENGTH)
    sizes = np.array([len(d) for d in documents[1:]])
    cap = int(1.5 * sizes.mean())
    assert cap < LENGTH
    assert layout.lengths.max() == cap
    assert layout.truncated_documents == (sizes > cap).sum()
    assert layout.truncated_tokens == (sizes - cap).clip(0).sum()
    assert layout.truncated == pytest.approx(layout.truncated_tokens / sizes.sum())
    assert data.with_batching(named("packed")).layout(LENGTH).truncated_tokens == 0


def test_documents_without_an_end_are_refused(tmp_path: Path) -> None:
    for size, name in ((200, "a.npy"), (100, "b.npy")):
        np.arange(size, dtype=np.uint16).tofile(tmp_path / name)
    config = DataConfig(corpus=None, path=str(tmp_path / "a.npy"), format="tokens", dtype="uint16",
                        validation_path=str(tmp_path / "b.npy"))  # fmt: skip
    data = open_data(config).with_batching(named("padded"))
    with pytest.raises(DataError, match="which token ends a document"):
        data.check(256, LENGTH)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=80))
def test_packing_fits_and_wastes_little(lengths: list[int]) -> None:
    rows = pack(np.array(lengths), 20)
    assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in row) for row in rows]
    assert max(filled) <= 20
    fewest = -(-sum(lengths) // 20)
    assert len(rows) <= 2 * fewest  # two rows of half and less would have been one
