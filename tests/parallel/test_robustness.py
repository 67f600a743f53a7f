"""Several processes measure the robustness that one measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crew import Config, Crew, Rows, said

from ablate.rundir import TrialDir


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_noise_and_shift_are_those_of_one_process(
    crew: Crew, config: Callable[..., Config], trial: Callable[[Config], TrialDir],
    alone: Callable[[Config], Rows], tmp_path: Path, name: str,
) -> None:  # fmt: skip
    (tmp_path / "other.txt").write_text("\n\n".join(f"{i} + {i} = {2 * i}" for i in range(1500)))
    evaluate = {"token_noise": 0.2, "shifted_data": str(tmp_path / "other.txt")}
    settings = config(evaluate=evaluate, parallel={"name": name})
    expected = {k: v for k, v in alone(settings)[-1].items() if k.startswith("robust/")}
    assert len(expected) == 4
    made = trial(settings)
    assert crew.run(made, 2) == [0, 0], said(made)
    summary = made.summary()
    assert summary is not None
    assert {k: summary[k] for k in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
