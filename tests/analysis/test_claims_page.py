"""docs/claims.md is what `ablate claims` makes of the stored trials; its sweeps are sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablate.analysis.ledger import ledger, read_stored
from ablate.cli import main
from ablate.plan import plan_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.stem for path in (ROOT / "sweeps" / "claims").glob("*.yaml"))


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


def test_the_ledger_has_every_sweep_of_claims_once() -> None:
    stored = [one.manifest["sweep"]["name"] for one in read_stored(ROOT / "docs" / "claims.json")]
    assert sorted(stored) == [f"claims/{name}" for name in SWEEPS]


@pytest.mark.parametrize("name", SWEEPS)
def test_the_ledger_is_of_the_sweep_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that was changed has to be run again: what was stored is what it plans, trial by
    trial (an id holds the fingerprint of all that can change a result), with the same claims and
    the same rule.
    """
    monkeypatch.chdir(tmp_path)  # no sweeps and no studies of this folder's own
    plan = plan_sweep([f"sweep=claims/{name}"])
    assert plan.claim
    (one,) = (
        one
        for one in read_stored(ROOT / "docs" / "claims.json")
        if one.manifest["sweep"]["name"] == f"claims/{name}"
    )
    assert sorted(one.trials["id"]) == sorted(trial.id for trial in plan.trials)
    assert one.manifest["claim"] == _as_stored(plan.claim)
    assert one.manifest["decide"] == _as_stored(plan.decide)


@pytest.mark.parametrize(
    ("sweep", "metric", "of", "peers"),
    [
        *(
            (
                f"claims/{sweep}",
                metric,
                "cache-dynamic",
                {"baseline", *(f"cache-{x}" for x in more)},
            )
            for sweep in ("cache", "cache_short")
            for metric, more in (
                ("cache/hit_rate", ("window", "heavy_hitter")),
                ("cache/perplexity", ("window", "heavy_hitter", "full")),
            )
        ),
        ("claims/protected", "diverged", "precision-protected", {"baseline", "precision-kernels"}),
    ],
)
def test_a_mechanism_is_compared_with_the_simple_ones(
    sweep: str, metric: str, of: str, peers: set[str]
) -> None:
    """Against a peer that nobody would use, anything is supported."""
    (one,) = (
        one
        for one in read_stored(ROOT / "docs" / "claims.json")
        if one.manifest["sweep"]["name"] == sweep
    )
    claims = [c for c in one.manifest["claim"] if c["metric"] == metric and not c["untestable"]]
    assert {c["against"] for c in claims if c["of"] == of} == peers


def test_memory_that_the_budget_sets_supports_nothing() -> None:
    table = ledger(read_stored(ROOT / "docs" / "claims.json"))
    rows = table[table["metric"] == "cache/bytes"]
    assert set(rows["verdict"]) == {"not testable as worded"}


def _as_stored(value: Any) -> Any:
    return json.loads(json.dumps(value))
