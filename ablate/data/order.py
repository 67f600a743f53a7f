"""Which sequences the batch of step t holds: a pure function of (number of sequences, seed, t).

An epoch is a pseudo-random permutation of the n sequences that is computed, never stored: a Feistel
network of mixed radix on the a x b grid with a = ceil(sqrt n), b = ceil(n / a), where values of n
and above are walked on along their cycle until they fall below n (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002). Memory is O(1) in n, an element costs O(1), and nothing
depends on world size, workers, restarts or the arm.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
from jaxtyping import Int64, UInt64

__all__ = ["permute", "sequence_indices"]

ROUNDS = 8
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)
M1, M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def sequence_indices(
    step: int, *, sequences: int, seed: int, batch_size: int
) -> Int64[np.ndarray, "b"]:
    """The sequences of the batch at `step` (counted from 1), in order.

    Step t takes the positions (t - 1) * batch_size and following of an endless stream in which
    each epoch is a permutation of its own; a batch may end one epoch and begin the next.
    """
    if step < 1 or sequences < 1 or batch_size < 1:
        raise ValueError(
            f"step={step}, sequences={sequences}, batch_size={batch_size}: all count from 1"
        )
    first = (step - 1) * batch_size
    parts = []
    while batch_size > 0:
        epoch, start = divmod(first, sequences)
        take = min(batch_size, sequences - start)
        positions = np.arange(start, start + take, dtype=np.int64)
        parts.append(permute(positions, sequences, seed, epoch))
        first, batch_size = first + take, batch_size - take
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def permute(
    positions: Int64[np.ndarray, "n"], size: int, seed: int, epoch: int
) -> Int64[np.ndarray, "n"]:
    """The images of `positions` under the permutation of range(size) that (seed, epoch) names."""
    keys = _keys(seed, epoch)
    a = math.isqrt(size - 1) + 1
    b = -(-size // a)
    result = _encrypt(positions.astype(np.uint64), a, b, keys)
    outside = np.flatnonzero(result >= size)
    while outside.size:
        result[outside] = _encrypt(result[outside], a, b, keys)
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


def _encrypt(
    values: UInt64[np.ndarray, "n"], a: int, b: int, keys: UInt64[np.ndarray, "r"]
) -> UInt64[np.ndarray, "n"]:
    """A bijection of range(a * b): each round adds a hash of one coordinate to the other."""
    rows, columns = np.uint64(a), np.uint64(b)
    left, right = np.divmod(values, columns)
    for i in range(0, ROUNDS, 2):
        left = (left + _mix(right ^ keys[i]) % rows) % rows
        right = (right + _mix(left ^ keys[i + 1]) % columns) % columns
    return left * columns + right


def _mix(x: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every
    output bit.
    """
    x = (x ^ (x >> S30)) * M1
    x = (x ^ (x >> S27)) * M2
    return x ^ (x >> S31)


@functools.lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> UInt64[np.ndarray, "r"]:
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
