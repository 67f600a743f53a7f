"""Budgets: amounts, and one number of steps."""

from __future__ import annotations

import pytest

from ablate.errors import ConfigError
from ablate.plan.budget import quantity, steps_of, tokens_per_step

CONFIG = {
    "train": {"steps": 7, "batch_size": 4, "sequence_length": None},
    "model": {"max_sequence_length": 50},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2M", 2e6),
        ("1.5B", 1.5e9),
        (2_000_000, 2e6),
        ("2_000", 2000),
        ("3e15", 3e15),
        ("64k", 64e3),
        (1e6, 1e6),
    ],
)
def test_amounts_have_suffixes(text, value) -> None:
    assert quantity("sweep.budget.tokens", text) == value


@pytest.mark.parametrize(
    "bad", ["", "many", "-2M", 0, True, None, "2 M tokens", [1], float("nan"), float("inf")]
)
def test_a_bad_amount_is_refused_by_field(bad) -> None:
    with pytest.raises(ConfigError) as error:
        quantity("sweep.budget.tokens", bad)
    assert error.value.field == "sweep.budget.tokens"


def test_a_budget_becomes_steps() -> None:
    assert tokens_per_step(CONFIG) == 200
    assert steps_of(None, CONFIG, 6) == 7
    assert steps_of({"steps": "1k"}, CONFIG, 6) == 1000
    assert steps_of({"tokens": "2k", "steps": None}, CONFIG, 6) == 10
    assert steps_of({"flops": 200 * 6 * 12}, CONFIG, 6) == 12


@pytest.mark.parametrize(
    "bad",
    [{}, {"steps": 3, "tokens": 4}, {"epochs": 1}, {"steps": 2.5}, {"tokens": 10}, {"flops": 5}],
)
def test_a_budget_that_is_no_number_of_steps_is_refused(bad) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.budget"):
        steps_of(bad, CONFIG, 6)
