from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.data.order import permute, sequence_indices

SEEDS = st.integers(0, 2**63 - 1)


@given(st.integers(1, 3000), SEEDS, st.integers(0, 50))
def test_an_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    image = permute(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(image), np.arange(size))


@given(st.integers(1, 2**45), SEEDS, st.integers(0, 50), st.data())
def test_an_element_does_not_depend_on_its_company(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    together = permute(np.array(positions), size, seed, epoch)
    alone = [int(permute(np.array([p]), size, seed, epoch)[0]) for p in positions]
    assert together.tolist() == alone
    assert len(set(alone)) == len(set(positions))
    assert all(0 <= v < size for v in alone)


@given(st.integers(1, 60), SEEDS, st.integers(1, 20), st.integers(1, 20))
def test_batches_are_consecutive_stretches_of_one_stream(
    sequences: int, seed: int, batch_size: int, steps: int
) -> None:
    stream = np.concatenate(
        [
            sequence_indices(t, sequences=sequences, seed=seed, batch_size=batch_size)
            for t in range(1, steps + 1)
        ]
    )
    whole = len(stream) // sequences * sequences
    for epoch in stream[:whole].reshape(-1, sequences):
        assert np.array_equal(np.sort(epoch), np.arange(sequences))
    assert len(set(stream[whole:].tolist())) == len(stream) - whole
    doubled = [
        sequence_indices(t, sequences=sequences, seed=seed, batch_size=2 * batch_size)
        for t in range(1, steps // 2 + 1)
    ]
    if doubled:
        assert np.array_equal(np.concatenate(doubled), stream[: 2 * batch_size * (steps // 2)])


PINNED = [124, 900, 768, 855, 623, 671, 689, 280]


def test_the_order_is_pinned() -> None:
    """The same seed must give the same batches in every later version."""
    assert sequence_indices(3, sequences=1000, seed=0, batch_size=8).tolist() == PINNED


def test_seeds_and_epochs_differ() -> None:
    orders = [permute(np.arange(500), 500, seed, epoch) for seed in range(4) for epoch in range(4)]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            assert (a == b).mean() < 0.05


@pytest.mark.parametrize("size", [7, 10, 64])
def test_every_element_is_equally_likely_at_every_place(size: int) -> None:
    """Chi-square over 2000 seeds, within 5 standard deviations of its mean."""
    trials = 2000
    counts = np.zeros((size, size))
    for seed in range(trials):
        counts[np.arange(size), permute(np.arange(size), size, seed, 0)] += 1
    expected = trials / size
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = (size - 1) ** 2
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_neighbours_are_torn_apart() -> None:
    """Correlation of neighbouring places in a large epoch is that of chance (sd 1/sqrt n)."""
    size = 40_000
    order = permute(np.arange(size), size, 3, 0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(size)


def test_memory_does_not_grow_with_the_number_of_sequences() -> None:
    def peak(sequences: int) -> int:
        tracemalloc.start()
        sequence_indices(12345, sequences=sequences, seed=1, batch_size=64)
        _, high = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return high

    peak(100)
    assert peak(10**14) < 100_000


@settings(max_examples=20)
@given(st.integers(-5, 0))
def test_steps_count_from_one(step: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        sequence_indices(step, sequences=10, seed=0, batch_size=2)
