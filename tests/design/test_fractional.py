"""Fractions of the factorial: counts, balance, orthogonality, and aliases that are true."""

from __future__ import annotations

import itertools

import numpy as np
import pydoe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.design import BASELINE, DESIGNS, INFO, Level
from ablate.design.fractional import aliases, fractional_table
from ablate.errors import ConfigError, PlanError

RUNS = {  # NIST/SEMATECH e-Handbook, table 5.3.3.4.7
    3: {3: 4, 5: 8, 6: 8, 7: 8, 9: 16, 11: 16, 15: 16},
    4: {4: 8, 6: 16, 8: 16, 9: 32, 16: 32},
    5: {5: 16, 6: 32, 8: 64, 10: 128},
}


def made(k: int) -> dict[str, list[Level]]:
    return {f"f{i}": [Level(label="on", overrides=(f"f{i}=1",))] for i in range(k)}


@pytest.mark.parametrize(
    ("resolution", "k", "runs"), [(r, k, n) for r, row in RUNS.items() for k, n in row.items()]
)
def test_the_number_of_arms_is_the_published_one(resolution, k, runs) -> None:
    assert len(DESIGNS["fractional"](made(k), resolution=resolution)) == runs


@settings(max_examples=30)
@given(k=st.integers(3, 9), resolution=st.sampled_from([3, 4, 5]))
def test_a_fraction_is_balanced_orthogonal_and_of_its_resolution(k, resolution) -> None:
    table = fractional_table(k, resolution)
    runs = len(table)
    assert (table[0] == 0).all(), "the baseline is an arm"
    assert len({tuple(row) for row in table.tolist()}) == runs, "no arm twice"
    signs = 2 * table.astype(int) - 1
    assert (signs.sum(0) == 0).all(), "each level equally often"
    assert (signs.T @ signs == runs * np.eye(k)).all(), "each pair of levels equally often"
    for size in range(1, min(resolution, k + 1)):
        for term in itertools.combinations(range(k), size):
            assert abs(signs[:, term].prod(1).sum()) < runs, "no shorter word than the resolution"
    info = INFO["fractional"](made(k), resolution=resolution)
    assert info["resolution"] is None or info["resolution"] >= resolution
    assert info["runs"] * 2 ** len(info["generators"]) == info["full_runs"]


@settings(max_examples=20)
@given(k=st.integers(3, 8), resolution=st.sampled_from([3, 4, 5]))
def test_the_aliases_are_those_of_the_library_with_their_signs(k, resolution) -> None:
    table = fractional_table(k, resolution)
    signs = 2 * table.astype(int) - 1
    for chain in aliases(table):
        first = signs[:, chain[0][0]].prod(1)
        for term, sign in chain:
            assert (signs[:, term].prod(1) * sign == first).all()
    theirs = set()
    for line in pydoe.fracfact_aliasing(-signs)[0]:  # theirs are of one sign
        terms = [tuple("abcdefgh".index(c) for c in word) for word in line.split(" = ")]
        theirs.add(frozenset(t for t in terms if len(t) <= 2))
    assert {frozenset(t for t, _ in chain) for chain in aliases(table)} == theirs - {frozenset()}


def test_generators_multiply_to_their_factor() -> None:
    names = list(made(9))
    info = INFO["fractional"](made(9), resolution=4)
    signs = 2 * fractional_table(9, 4).astype(int) - 1
    assert info["generators"]
    for line in info["generators"]:
        factor, _, word = line.partition(" = ")
        sign = -1 if word.startswith("-") else 1
        parts = [names.index(part) for part in word.lstrip("-").split(" x ")]
        assert (signs[:, parts].prod(1) * sign == signs[:, names.index(factor)]).all()


def test_what_has_no_fraction_is_refused() -> None:
    two = [Level(label=x, overrides=(f"a={x}",)) for x in "xy"]
    with pytest.raises(PlanError, match=r"sweep\.factors\.a has 2 changes"):
        DESIGNS["fractional"]({"a": two, **made(3)})
    with pytest.raises(PlanError, match="3 to 26 factors"):
        DESIGNS["fractional"](made(2))
    with pytest.raises(ConfigError, match="must be 3, 4 or 5"):
        DESIGNS["fractional"](made(4), resolution=6)


def test_the_names_are_those_of_the_factorial() -> None:
    arms = DESIGNS["fractional"](made(4), resolution=4)
    assert arms[0].name == BASELINE
    assert {a.name for a in arms} <= {a.name for a in DESIGNS["factorial"](made(4))}
