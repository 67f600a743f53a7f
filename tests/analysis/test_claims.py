"""What verdicts on claims promise: stated error rates, planted effects found, nothing invented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from studies import DECIDE, values, write_study

from ablate.analysis.claim_rule import Measured, conclude, newcombe, student
from ablate.analysis.estimate import fit
from ablate.analysis.rule import Rule
from ablate.analysis.tables.claims import judge_claims
from ablate.cli import main

RULE = Rule(smallest_effect=0.005)
SIMULATIONS = 200


def claim(**fields: Any) -> dict[str, Any]:
    """As a manifest holds it."""
    filled = {
        "source": "an article", "statement": "it helps", "metric": "val/loss", "of": "new",
        "against": "old", "relative": None, "absolute": None, "direction": "lower",
        "rates": "best", "margin": None, "untestable": None, "nearest": None,
    }  # fmt: skip
    return filled | fields


def trials(
    effect: float,
    *,
    seeds: int = 4,
    sd: float = 0.01,
    level: float = 1.0,
    rng: int = 0,
    arms: int = 3,
) -> pd.DataFrame:
    """Arms old, new and others that do nothing; a value is level + effect + seed + noise."""
    draw = np.random.default_rng(rng)
    block = draw.normal(0, 0.05, seeds)
    names = ["old", "new", *(f"other{i}" for i in range(arms - 2))]
    rows = [
        {"arm": a, "seed": s, "lr": np.nan, "status": "done", "step": 10, "steps": 10,
         "val/loss": level + (effect if a == "new" else 0.0) + block[s] + draw.normal(0, sd)}
        for a in names for s in range(seeds)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    return frame.assign(**{"val/bpb": frame["val/loss"]})


def verdict(frame: pd.DataFrame, stated: dict[str, Any], rule: Rule = RULE) -> pd.Series:
    return judge_claims(frame, [stated], rule).iloc[0]


def share(effect: float, wanted: str, stated: dict[str, Any], **how: Any) -> float:
    """How often the verdict comes out over repeated studies."""
    found = [simulated(effect, stated, i, **how)[0] for i in range(SIMULATIONS)]
    return found.count(wanted) / SIMULATIONS


def simulated(
    effect: float, stated: dict[str, Any], rng: int, *, seeds: int = 4, sd: float = 0.01
) -> tuple[str, Measured]:
    """`trials` judged, without the frames: a hundred times as quick."""
    draw = np.random.default_rng(rng)
    names = ["new", "old", "other"]
    if stated["relative"] is not None:
        effect = float(np.log1p(effect))  # a relative effect multiplies
    truth = np.array([effect, 0.0, 0.0])[:, None] + draw.normal(0, 0.05, seeds)
    y = (truth + draw.normal(0, sd, truth.shape)).ravel()
    model = fit(np.repeat(names, seeds), np.tile(np.arange(seeds), 3), y)
    m = student(model, "new", "old", level=0.05, seeds=(seeds, seeds), diverged=(0, 0))
    return conclude(m, stated, lower_is_better=True)[0], m


def test_the_simulation_judges_as_the_table_does() -> None:
    stated = claim(absolute=-0.1, margin=0.02)
    frame = trials(-0.1, arms=3)
    m = student(
        fit(frame["arm"], frame["seed"], frame["val/loss"]),
        "new", "old", level=0.05, seeds=(4, 4), diverged=(0, 0),
    )  # fmt: skip
    row = verdict(frame, stated)
    assert (row["low"], row["high"]) == pytest.approx((m.low, m.high))
    assert row["verdict"] == conclude(m, stated, lower_is_better=True)[0]


def upper(rate: float) -> float:
    """What a true rate is exceeded by in one of ten thousand such simulations."""
    return float(stats.binom.isf(1e-4, SIMULATIONS, rate)) / SIMULATIONS


@pytest.mark.parametrize(
    ("effect", "stated", "wanted"),
    [
        (-0.1, claim(absolute=-0.1, margin=0.02), "supported"),
        (-0.2, claim(absolute=-0.1, margin=0.02), "supported"),
        (-0.1, claim(relative=-0.1, margin=0.02), "supported"),
        (-0.1, claim(), "supported"),
        (0.1, claim(absolute=0.1, direction="higher", margin=0.02), "supported"),
        (-0.04, claim(absolute=-0.2, margin=0.02), "weaker than claimed"),
        (0.1, claim(absolute=-0.1, margin=0.02), "contradicted"),
        (0.1, claim(), "contradicted"),
        (0.0, claim(absolute=-0.2, margin=0.04), "contradicted"),
        (0.0, claim(direction="no_worse", absolute=0.05), "supported"),
        (-0.3, claim(direction="no_worse", absolute=0.05), "supported"),
        (0.2, claim(direction="no_worse", relative=0.05), "contradicted"),
    ],
)
def test_a_planted_truth_gets_its_verdict(
    effect: float, stated: dict[str, Any], wanted: str
) -> None:
    # Of a true effect of exactly the claimed size one interval in forty lies short of it.
    assert share(effect, wanted, stated) > 0.94


def test_without_an_effect_a_claim_is_hardly_ever_supported() -> None:
    """One of the two sides of the interval, at 5 %, is the claim's."""
    assert share(0.0, "supported", claim()) <= upper(0.025)
    assert share(0.0, "contradicted", claim()) <= upper(0.025)


def test_a_true_size_is_hardly_ever_called_weaker() -> None:
    stated = claim(absolute=-0.03, margin=0.001)
    assert share(-0.03, "weaker than claimed", stated) <= upper(0.025)


def test_harm_at_the_margin_is_hardly_ever_called_no_worse() -> None:
    stated = claim(direction="no_worse", absolute=0.05)
    assert share(0.05, "supported", stated) <= upper(0.025)
    assert share(0.05, "contradicted", stated) <= upper(0.025)


def test_equivalence_errs_at_its_level() -> None:
    """An effect of exactly the margin is taken for none at most at the level of the test."""
    stated = claim(absolute=-0.2, margin=0.02)
    assert share(-0.02, "contradicted", stated, sd=0.005) <= upper(0.05)


def test_the_interval_covers_the_ratio_as_often_as_it_says() -> None:
    stated = claim(relative=-0.1, margin=0.02)
    held = 0
    for i in range(SIMULATIONS):
        m = simulated(-0.1, stated, i, sd=0.002)[1]
        held += m.low <= np.log(0.9) <= m.high
    assert abs(held / SIMULATIONS - 0.95) < 0.05


def test_rounding_is_no_effect() -> None:
    frame = trials(0.0).assign(**{"val/loss": 98304.0})
    frame.loc[frame["arm"] == "new", "val/loss"] *= 1 + 4e-16
    row = verdict(frame, claim(relative=-0.15, margin=0.03))
    assert (row["verdict"], row["estimate"]) == ("contradicted", 0.0)


def test_several_claims_share_the_level() -> None:
    frame, one = trials(0.0), claim(absolute=-0.1, margin=0.02)
    alone, among = verdict(frame, one), judge_claims(frame, [one] * 4, RULE).iloc[0]
    assert (alone["level"], among["level"]) == (0.95, 0.9875)
    assert among["high"] - among["low"] > alone["high"] - alone["low"]


def test_undecided_says_how_many_seeds_would_decide_and_they_do() -> None:
    stated = claim(absolute=-0.02, margin=0.004)

    def typical(rng: int) -> bool:
        """Undecided, and its estimates are the truth."""
        word, m = simulated(-0.012, stated, rng, seeds=3, sd=0.02)
        near = m.fit is not None and abs(m.fit.sigma - 0.02) < 1e-3
        return word == "undecided" and near and abs(m.estimate + 0.012) < 2e-3

    rng = next(i for i in range(10_000) if typical(i))
    m = simulated(-0.012, stated, rng, seeds=3, sd=0.02)[1]
    needed = m.seeds_needed(stated, "undecided", lower_is_better=True)
    assert needed is not None
    assert 10 < needed < 100
    found = [simulated(-0.012, stated, i, seeds=needed, sd=0.02)[0] for i in range(200)]
    assert 0.7 < np.mean([v != "undecided" for v in found]) < 0.92
    rows = (verdict(trials(-0.012, rng=i, seeds=3, sd=0.02), stated) for i in range(99))
    open_ = next(row for row in rows if row["verdict"] == "undecided")
    assert "seeds would decide" in open_["note"]


def test_an_arm_that_lost_seeds_supports_nothing() -> None:
    frame = trials(-0.1)
    frame.loc[(frame["arm"] == "new") & (frame["seed"] == 0), "status"] = "diverged"
    row = verdict(frame, claim(absolute=-0.1, margin=0.02))
    assert row["verdict"] == "contradicted"
    assert "diverged 1 of new, 0 of old" in row["note"]
    assert verdict(frame, claim(direction="no_worse", absolute=1.0))["verdict"] == "contradicted"


def test_divergence_is_a_share_of_trials_with_an_interval_that_is_never_empty() -> None:
    frame = trials(0.0, seeds=6)
    frame.loc[frame["arm"] == "old", "status"] = "diverged"
    row = verdict(frame, claim(metric="diverged"))
    assert (row["verdict"], row["estimate"]) == ("supported", -1.0)
    assert -1.01 < row["low"] < row["high"] < 0
    both = frame.assign(status="done")
    assert verdict(both, claim(metric="diverged"))["verdict"] == "undecided"


@pytest.mark.parametrize("metric", ["spikes/lost", "diverged"])
@pytest.mark.parametrize("relative", [-0.25, None])
def test_events_that_did_not_happen_contradict_nothing(metric: str, relative: float | None) -> None:
    """Without noise the equivalence test would hold; equal bytes (above) contradict."""
    frame = trials(0.0, seeds=40).assign(**{"spikes/lost": 1 / 6})
    row = verdict(frame, claim(metric=metric, relative=relative, margin=relative and 0.05))
    assert "undecided" in (row["verdict"], row["nearest_verdict"])
    assert "no difference could have shown" in row["note"]
    assert "seeds" not in row["note"]
    one = (frame["arm"] == "old") & (frame["seed"] == 0)
    other = frame.assign(**{"spikes/lost": frame["spikes/lost"].mask(one, 1 / 3)})
    other.loc[one, "status"] = "diverged" if metric == "diverged" else "done"
    row = verdict(other, claim(metric=metric, relative=relative, margin=relative and 0.05))
    assert "no difference could have shown" not in row["note"]


def test_a_ratio_of_shares_has_no_interval_and_both_reasons_are_printed() -> None:
    frame = trials(0.0, seeds=6).assign(status="diverged")
    stated = claim(metric="diverged", relative=-0.25, untestable="it is vague", nearest="fewer")
    row = verdict(frame, stated)
    assert row["scale"] == "absolute"
    assert row["low"] < -0.2 < 0.2 < row["high"]
    assert row["nearest"] == "fewer; or rather: diverged is lower at all"
    assert row["note"].startswith("it is vague; how often trials diverge")


def test_unknown_numbers_of_seeds_are_not_called_too_many() -> None:
    """Of shares it is not computed."""
    frame = trials(0.0, seeds=6)
    frame.loc[(frame["arm"] == "old") & (frame["seed"] < 2), "status"] = "diverged"
    row = verdict(frame, claim(metric="diverged"))
    assert row["verdict"] == "undecided"
    assert "seeds" not in row["note"]


def test_newcombes_interval_is_the_published_one() -> None:
    """Newcombe 1998, table II, method 10: 56/70 against 48/80."""
    m = newcombe(np.repeat([1, 0], [56, 14]), np.repeat([1, 0], [48, 32]), 0.05)
    assert (m.low, m.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_what_cannot_be_tested_says_why_and_what_can() -> None:
    stated = claim(untestable="no cache changes a weight", nearest="the loss is lower")
    row = verdict(trials(-0.1), stated)
    assert row["verdict"] == "not testable as worded"
    assert (row["nearest"], row["nearest_verdict"]) == ("the loss is lower", "supported")
    assert row["note"].startswith("no cache changes a weight")
    missing = verdict(trials(0.0).assign(**{"val/loss": np.nan}), claim())
    assert missing["verdict"] == "not testable as worded"
    assert "no trial of new recorded val/loss" in missing["note"]
    zero = trials(-0.1).assign(**{"val/loss": lambda f: (f["arm"] != "new") * f["val/loss"]})
    row = verdict(zero, claim(relative=-0.5, margin=0.1))
    assert (row["verdict"], row["nearest_verdict"]) == ("not testable as worded", "supported")


def test_unfinished_and_single_seeds_are_undecided() -> None:
    frame = trials(-0.1)
    frame.loc[0, "status"] = "running"
    assert verdict(frame, claim())["verdict"] == "undecided"
    assert verdict(trials(-0.1, seeds=1), claim())["note"] == "one seed: no interval"


def test_a_best_learning_rate_at_the_edge_decides_nothing_and_all_rates_do() -> None:
    low, high = trials(0.05).assign(lr=1e-3), trials(-0.1, level=0.5).assign(lr=1e-2)
    frame = pd.concat([low, high], ignore_index=True)
    row = verdict(frame, claim())
    assert row["verdict"] == "undecided"
    assert "at the edge" in row["note"]
    assert verdict(frame, claim(rates="all"))["verdict"] == "supported"
    assert verdict(frame, claim(rates=1e-2))["verdict"] == "supported"
    assert verdict(frame, claim(rates=1e-3))["verdict"] == "contradicted"


# ---- the verbs


def study_with_claims(folder: Path) -> None:
    extra = {
        "claim": [claim(metric="val/bpb", of="new", against="old", absolute=-0.05, margin=0.005)]
    }
    write_study(
        folder / "runs/helps",
        values({"old": 0.0, "new": -0.05}),
        decide=DECIDE,
        manifest_extra=extra,
    )
    write_study(folder / "runs/plain", values({"old": 0.0, "new": -0.05}))


def test_report_prints_the_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_with_claims(tmp_path)
    assert main(["report", str(tmp_path / "runs/helps")]) == 0
    out = capsys.readouterr().out
    assert "it helps" in out
    assert "supported" in out
    assert main(["report", str(tmp_path / "runs/helps"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [c["verdict"] for c in printed["claims"]] == ["supported"]
    assert "## Claims" in (tmp_path / "runs/helps/report/report.md").read_text()


def test_the_ledger_is_the_same_from_disk_and_from_what_was_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_with_claims(tmp_path)
    file = tmp_path / "ledger.json"
    where = f"runs_dir={tmp_path}/runs"
    assert main(["claims", where, "--json", "--save", str(file)]) == 0
    fresh = json.loads(capsys.readouterr().out)["claims"]
    assert main(["claims", str(file), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)["claims"]
    assert [(c["study"], c["verdict"], c["trials"]) for c in fresh] == [("helps", "supported", 6)]
    for a, b in zip(fresh, stored, strict=True):
        assert {
            k: pytest.approx(v, rel=1e-5) if isinstance(v, float) else v for k, v in a.items()
        } == b
    assert main(["claims", str(file), "--markdown"]) == 0
    page = capsys.readouterr().out
    assert "**supported**" in page
    assert f"ablate claims {file} --markdown" in page


def test_a_damaged_study_is_left_out_of_the_ledger_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_with_claims(tmp_path)
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    where = f"runs_dir={tmp_path}/runs"
    assert main(["claims", where, "--json"]) == 1
    said = capsys.readouterr()
    assert [c["study"] for c in json.loads(said.out)["claims"]] == ["helps"]
    assert "broken is left out" in said.err
    assert main(["claims", where, "broken"]) == 2, "who names it is told, and gets nothing"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs_dir=empty"], "no study of runs_dir=empty carries a claim"),
        (["missing.json"], "is no stored ledger"),
        (["--json", "--markdown"], "give one of them"),
        (["a.json", "b"], "give one stored ledger"),
        (["--save", "none/ledger.json"], "folder that is not there (none)"),
    ],
)
def test_mistakes_are_one_paragraph(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["claims", *words]) == 2
    assert said in capsys.readouterr().err
