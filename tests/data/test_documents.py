from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ablate.data import document_lengths, repetitive

rows = st.integers(1, 30).flatmap(
    lambda t: st.lists(st.lists(st.integers(0, 3), min_size=t, max_size=t), min_size=1, max_size=5)
)


@given(rows)
def test_document_lengths_split_each_row_behind_every_eos(values: list[list[int]]) -> None:
    ids = np.array(values, dtype=np.int64)
    lengths, longest = document_lengths(ids, 0)
    for row, found, most in zip(values, lengths, longest, strict=True):
        documents, current = [], 0
        for token in row:
            current += 1
            if token == 0:
                documents.append(current)
                current = 0
        if current:
            documents.append(current)
        assert found[: len(documents)].tolist() == documents
        assert not found[len(documents) :].any()
        assert most == max(documents)


@given(rows, st.data())
def test_padding_counts_as_one_document(values: list[list[int]], data: st.DataObject) -> None:
    ids = np.array(values, dtype=np.int64)
    length = data.draw(st.integers(1, ids.shape[1]))
    lengths, _ = document_lengths(ids, 0, np.full(len(ids), length))
    assert (lengths.sum(axis=1) == ids.shape[1]).all()
    alone, _ = document_lengths(ids[:, :length], 0)
    for padded, bare in zip(lengths, alone, strict=True):
        expected = bare[bare > 0].tolist() + [ids.shape[1] - length] * (length < ids.shape[1])
        assert padded[padded > 0].tolist() == expected


def test_document_lengths_agree_with_olmo() -> None:
    import olmo.data.util as util
    import torch

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 6, size=(50, 40))
    lengths, _ = document_lengths(ids, 0)
    for row, found in zip(ids, lengths, strict=True):
        upstream = util.get_document_lengths(torch.tensor(row), 0).tolist()
        assert found[found > 0].tolist() == upstream


def upstream_says(row: np.ndarray) -> bool:
    import olmo.data.util as util

    return any(r.times >= 32 for r in util.find_periodic_sequences(row, max_period=13))


def planted(rng: np.random.Generator, length: int, period: int, span: int) -> np.ndarray:
    row = rng.integers(0, 1000, size=length)
    pattern = rng.integers(0, 1000, size=period)
    start = rng.integers(0, length - span + 1)
    row[start : start + span] = np.resize(pattern, span)
    return row


def test_the_repetition_filter_agrees_with_olmo_around_the_threshold() -> None:
    rng = np.random.default_rng(1)
    seen = {True: 0, False: 0}
    for period in range(1, 16):
        for span in range(32 * period - 3, 32 * period + 4):
            row = planted(rng, 600, period, span)
            expected = upstream_says(row)
            assert repetitive(row[None])[0] == expected, (period, span)
            seen[expected] += 1
    assert min(seen.values()) > 20


def test_the_repetition_filter_agrees_with_olmo_on_noise_of_few_symbols() -> None:
    rng = np.random.default_rng(2)
    rows = rng.choice(2, size=(300, 256), p=[0.93, 0.07])
    expected = [upstream_says(row) for row in rows]
    assert repetitive(rows).tolist() == expected
    assert 0 < sum(expected) < 300


def test_short_rows_are_never_repetitive() -> None:
    assert not repetitive(np.zeros((2, 31), dtype=np.int64)).any()
    assert repetitive(np.zeros((2, 32), dtype=np.int64)).all()
