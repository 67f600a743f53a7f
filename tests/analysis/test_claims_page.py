"""docs/claims.md is what `ablate claims` makes of the stored trials; its sweeps are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.analysis.ledger import ledger, read_stored
from ablate.cli import main
from ablate.plan import plan_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(p.stem for p in (ROOT / "sweeps" / "claims").glob("*.yaml"))


def test_the_page_is_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["claims", "docs/claims.json", "--markdown"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_every_claim_of_the_ledger_was_measured_with_an_interval() -> None:
    table = ledger(read_stored(ROOT / "docs" / "claims.json"))
    assert len(table) >= 10
    assert table[["estimate", "low", "high"]].notna().all(axis=None)
    assert (table["low"] <= table["estimate"]).all()
    assert (table["estimate"] <= table["high"]).all()


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_of_claims_is_a_sound_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan_sweep([f"sweep=claims/{name}"]).claim
