"""The sweeps of docs/designs.md are sound plans."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablate.design import DESIGNS
from ablate.plan import plan_sweep

TEXT = (Path(__file__).parents[2] / "docs" / "designs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
EXAMPLES = {
    named[1]: block
    for block in BLOCKS
    if (named := re.search(r"^# sweeps/(\w+)\.yaml$", block, re.M))
}
"""By the name of the file into which a reader pastes it, whole."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_a_sound_plan(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / f"{name}.yaml").write_text(EXAMPLES[name], encoding="utf-8")
    assert len(plan_sweep([f"sweep={name}"]).arms) >= 4


def test_every_block_that_is_a_sweep_is_one_of_them() -> None:
    assert sum("\nsweep:\n" in block for block in BLOCKS) == len(EXAMPLES)


def test_every_design_is_documented() -> None:
    assert all(f"`{design}`" in TEXT for design in DESIGNS)
    assert len(EXAMPLES) >= 5
