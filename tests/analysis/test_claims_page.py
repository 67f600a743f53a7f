"""docs/claims.md is what `ablate claims` makes of the stored trials; its sweeps are sound."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ablate.analysis.ledger import ledger, read_stored
from ablate.cli import main
from ablate.plan import plan_sweep

ROOT = Path(__file__).parents[2]
SWEEP_FILES = sorted((ROOT / "sweeps" / "claims").glob("*.yaml"))
SWEEPS = [path.stem for path in SWEEP_FILES]


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


def test_the_ledger_is_of_the_sweeps_as_they_are() -> None:
    """A sweep that was changed has to be run again: its claims are those of the stored study."""
    table = ledger(read_stored(ROOT / "docs" / "claims.json"))
    stored = {(row["study"], row["statement"]) for row in table.to_dict("records")}
    written = set()
    for path in SWEEP_FILES:
        claims = yaml.safe_load(path.read_text(encoding="utf-8"))["sweep"]["claim"]
        for claim in claims if isinstance(claims, list) else [claims]:
            written.add((f"claims-{path.stem}", claim["statement"]))
    assert stored == written


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_of_claims_is_a_sound_plan(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan_sweep([f"sweep=claims/{name}"]).claim
