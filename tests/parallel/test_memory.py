"""A trial holds what the plan says, also where its weights are divided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crew import Config, Crew, make_trial, said

from ablate.plan import memory_of

LARGE = {"d_model": 128, "n_heads": 4, "n_layers": 4, "mlp_ratio": 4, "weight_tying": False}
"""3 MB of weights, beside which two rows of eight tokens are little."""


@pytest.mark.parametrize(
    ("name", "mode", "processes"),
    [("none", "batch", 1), ("ddp", "batch", 2), ("fsdp", "batch", 2), ("fsdp", "micro_batch", 2)],
)
def test_the_peak_is_the_plans(
    name: str,
    mode: str,
    processes: int,
    crew: Crew,
    config: Callable[..., Config],
    tmp_path: Path,
) -> None:
    train = {"steps": 3, "micro_batch_size": 2, "sequence_length": 8, "validation_tokens": 30}
    train |= {"measure_every": 0, "validate_every": 0}
    chosen = config(model=LARGE, train=train, parallel={"name": name, "grad_sync_mode": mode})
    made, counted = make_trial(tmp_path, chosen), tmp_path / "peak"
    codes = crew.run(made, processes, {"rank": 0, "memory": str(counted)})
    assert codes == [0] * processes, said(made)
    formula = memory_of(chosen, processes=processes, device="cpu").peak
    assert formula / int(counted.read_text()) == pytest.approx(1.0, abs=0.03)
