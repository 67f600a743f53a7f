"""Final metrics held against the record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ablate.analysis.damage import check_against_record

LOSS = np.array([3.0, 2.0, 1.0, 0.5])


def row(**values: Any) -> dict[str, Any]:
    return {"status": "done", "steps": 4, "train/loss": 0.5, **values}


@pytest.mark.parametrize("step", [np.array(list("1234"), dtype=object), np.array(["1"] * 4)])
def test_steps_that_are_no_numbers_leave_the_summary_alone(step: np.ndarray) -> None:
    rows = [row(**{"train/loss": 9.0})]
    check_against_record(rows, [4], {"step": step, "train/loss": LOSS})
    assert rows == [row(**{"train/loss": 9.0})]


def test_a_summary_that_disagrees_is_named_and_the_record_counts() -> None:
    rows = [row(**{"train/loss": 9.0})]
    check_against_record(rows, [4], {"step": np.arange(1, 5), "train/loss": LOSS})
    assert rows[0]["train/loss"] == 0.5
    assert "train/loss 9" in rows[0]["damage"]
