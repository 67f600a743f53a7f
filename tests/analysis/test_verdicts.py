"""Better, worse, equivalent, undecided: by the rule, against oracles, at the stated error rate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import studies
from scipy import integrate, stats
from statsmodels.formula.api import ols

from ablate.analysis.effects import COLUMNS, effects
from ablate.analysis.estimate import fit
from ablate.analysis.multiplicity import adjust, max_t_quantile, max_t_tail
from ablate.analysis.rule import Rule

DUNNETT = Rule(correction="dunnett")
HOLM = Rule(correction="holm")


def frame(values: dict[str, dict[int, float]]) -> pd.DataFrame:
    return pd.DataFrame(
        [(a, s, v) for a, row in values.items() for s, v in row.items()],
        columns=["arm", "seed", "value"],
    )


def star(values: dict[str, object]) -> dict[str, str | None]:
    first, *rest = values
    return {first: None, **dict.fromkeys(rest, first)}


def by_arm(table: pd.DataFrame) -> dict[str, dict[str, object]]:
    return {r["arm"]: r for r in table.to_dict("records")}


def test_the_pooled_variance_is_that_of_arm_plus_seed_worked_out_by_hand() -> None:
    # Residuals of this 2 x 3 table are (+1, -1, 0) and (-1, +1, 0): RSS 4 with (2-1)(3-1) = 2 df.
    values = {"a": {0: 11.0, 1: 19.0, 2: 30.0}, "b": {0: 12.0, 1: 24.0, 2: 33.0}}
    model = fit(*frame(values).to_numpy().T.tolist())
    assert model.df == 2
    assert model.sigma**2 == pytest.approx(2.0)
    c = model.contrasts([("b", "a")])
    assert c.estimate[0] == pytest.approx(3.0)  # the mean of the differences 1, 5, 3
    assert c.error[0] == pytest.approx(np.sqrt(2.0 * 2 / 3))


def test_two_arms_give_the_paired_t_test() -> None:
    values = studies.values({"base": 0, "x": 0.004}, range(5), rng=3)
    row = by_arm(effects(frame(values), star(values), HOLM)[0])["x"]
    d = np.array([values["x"][s] - values["base"][s] for s in range(5)])
    test = stats.ttest_1samp(d, 0)
    low, high = test.confidence_interval(0.95)
    assert (row["low"], row["high"], row["p"]) == pytest.approx((low, high, test.pvalue))


@pytest.mark.parametrize("missing", [0, 3])
def test_estimates_and_errors_equal_statsmodels_also_with_missing_cells(missing: int) -> None:
    values = studies.values({"base": 0, "x": 0.01, "y": -0.02, "z": 0.0}, range(4), rng=5)
    data = frame(values)
    data = data.drop(index=[0, 6, 13][:missing])
    result = ols("value ~ C(arm) + C(seed)", data).fit()
    table, model = effects(data, star(values), Rule(correction="none"))
    assert model.df == result.df_resid
    assert model.sigma == pytest.approx(np.sqrt(result.mse_resid))
    for arm, row in by_arm(table).items():
        if arm != "base":
            name = f"C(arm)[T.{arm}]"
            low, high = result.conf_int().loc[name]
            got = (row["difference"], row["low"], row["high"], row["p"])
            assert got == pytest.approx(
                (result.params[name], low, high, result.pvalues[name]), rel=1e-6
            )


def exact_dunnett_tail(q: float, k: int, df: int) -> float:
    """P(max |T| > q) for k arms against one reference, all with as many seeds: a double
    integral."""
    u, weight = np.polynomial.hermite_e.hermegauss(80)
    weight = weight / weight.sum()

    def given(s: float) -> float:
        inside = stats.norm.cdf(np.sqrt(2) * q * s - u) - stats.norm.cdf(-np.sqrt(2) * q * s - u)
        return float(weight @ inside**k) * stats.chi.pdf(s * np.sqrt(df), df) * np.sqrt(df)

    return 1 - integrate.quad(given, 0, 6, limit=200)[0]


@pytest.mark.parametrize(("k", "df"), [(1, 4), (2, 4), (4, 8), (8, 16), (20, 40)])
def test_the_dunnett_quantile_equals_the_double_integral(k: int, df: int) -> None:
    correlation = np.full((k, k), 0.5) + 0.5 * np.eye(k)
    q = max_t_quantile(correlation, df, 0.05)
    assert exact_dunnett_tail(q, k, df) == pytest.approx(0.05, abs=3e-4)
    assert max_t_tail(q, correlation, df) == pytest.approx(0.05, abs=1e-5 if k > 1 else 3e-4)


def test_unpaired_arms_give_scipys_dunnett_test() -> None:
    rng = np.random.default_rng(1)
    groups = {"base": rng.normal(0, 1, 6), "x": rng.normal(1.5, 1, 5), "y": rng.normal(-0.5, 1, 4)}
    seeds = iter(range(100))
    values = {a: {next(seeds): v for v in row} for a, row in groups.items()}
    table, model = effects(frame(values), star(values), DUNNETT)
    assert not model.blocked
    oracle = stats.dunnett(
        groups["x"], groups["y"], control=groups["base"], rng=np.random.default_rng(0)
    )
    interval = oracle.confidence_interval(0.95)
    rows = by_arm(table)
    for i, arm in enumerate(("x", "y")):
        assert rows[arm]["p"] == pytest.approx(oracle.pvalue[i], abs=2e-3)
        assert rows[arm]["low"] == pytest.approx(interval.low[i], abs=5e-3)
        assert rows[arm]["high"] == pytest.approx(interval.high[i], abs=5e-3)


def _holm(p: np.ndarray) -> np.ndarray:
    """By the definition: the largest of the earlier ranks' products."""
    ranked = np.sort(p)
    return np.array([max(ranked[j] * (len(p) - j) for j in range(np.sum(ranked <= x))) for x in p])


def test_holms_interval_excludes_zero_exactly_where_holm_rejects() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        k = int(rng.integers(1, 7))
        t = rng.normal(0, 3, k)
        critical, p = adjust(t, np.eye(k), 12, alpha=0.05, correction="holm")
        assert ((np.abs(t) > critical) == (p < 0.05)).all()
        single = 2 * stats.t.sf(np.abs(t), 12)
        assert p == pytest.approx(np.clip(_holm(single), 0, 1))


def test_verdicts_follow_the_rule() -> None:
    truth = {"base": 0, "good": -0.03, "bad": 0.03, "same": 0.0, "tiny": 0.003}
    values = studies.values(truth, range(8), sd=0.0008, rng=2)
    rows = by_arm(effects(frame(values), star(values), HOLM)[0])
    assert {a: r["verdict"] for a, r in rows.items()} == {
        "base": "baseline",
        "good": "better",
        "bad": "worse",
        "same": "equivalent",
        "tiny": "equivalent",
    }
    assert rows["tiny"]["low"] > 0
    assert rows["tiny"]["note"] == "differs, but by less than matters"


def test_higher_is_better_turns_the_verdicts_round() -> None:
    values = studies.values({"base": 0, "up": 0.03, "down": -0.03}, range(4))
    rows = by_arm(effects(frame(values), star(values), Rule(metric="eval/accuracy"))[0])
    assert (rows["up"]["verdict"], rows["down"]["verdict"]) == ("better", "worse")


def test_undecided_says_how_many_seeds_would_decide_and_that_many_do() -> None:
    values = studies.values({"base": 0, "x": -0.006, "y": 0, "z": 0}, range(2), sd=0.003, rng=7)
    row = by_arm(effects(frame(values), star(values), DUNNETT)[0])["x"]
    assert row["verdict"] == "undecided"
    rule = Rule(correction="holm", smallest_effect=0.002)
    rng, decided, sigma, effect = np.random.default_rng(0), 0, 0.003, -0.006
    from ablate.analysis.verdict import seeds_that_decide

    n = seeds_that_decide(
        effect,
        sigma,
        rule,
        seeds=2,
        arms=2,
        comparisons=1,
        critical=float(stats.t.isf(0.025, 1)),
        df=1,
    )
    assert n is not None
    for _ in range(200):
        data = studies.values(
            {"base": 0, "x": effect}, range(n), sd=sigma, rng=int(rng.integers(2**31))
        )
        decided += by_arm(effects(frame(data), star(data), rule)[0])["x"]["verdict"] != "undecided"
    assert decided / 200 == pytest.approx(0.8, abs=0.1)


def test_a_single_seed_has_no_interval_and_no_verdict() -> None:
    values = {"base": {0: 2.0}, "x": {0: 1.0}}
    row = by_arm(effects(frame(values), star(values), HOLM)[0])["x"]
    assert row["difference"] == pytest.approx(-1.0)
    assert np.isnan(row["low"])
    assert row["verdict"] == "undecided"
    assert "one seed" in row["note"]


def test_arms_without_a_seed_in_common_are_not_compared() -> None:
    values = {"base": {0: 2.0, 1: 2.1}, "x": {0: 1.9, 1: 2.05}, "y": {7: 1.0, 8: 1.1}}
    row = by_arm(effects(frame(values), star(values), HOLM)[0])["y"]
    assert row["verdict"] == "undecided"
    assert "no seed in common" in row["note"]


def test_a_ladder_is_judged_rung_by_rung_with_the_baseline_beside_it() -> None:
    values = studies.values(
        {"base": 0, "one": -0.03, "two": -0.03, "three": -0.05}, range(4), sd=0.001
    )
    references = {"base": None, "one": "base", "two": "one", "three": "two"}
    rows = by_arm(effects(frame(values), references, DUNNETT)[0])
    assert [rows[a]["verdict"] for a in ("one", "two", "three")] == [
        "better",
        "equivalent",
        "better",
    ]
    for arm in ("one", "two", "three"):
        mean = np.mean([values[arm][s] - values["base"][s] for s in range(4)])
        assert rows[arm]["baseline_difference"] == pytest.approx(mean)
    assert rows["three"]["baseline_high"] < 0


def test_more_diverged_seeds_than_the_reference_is_worse_whatever_the_survivors_say() -> None:
    values = studies.values({"base": 0, "x": -0.05, "y": 0.0}, range(3), sd=0.001)
    values["x"][1] = np.nan
    table = effects(frame(values), star(values), HOLM)[0]
    row = by_arm(table)["x"]
    assert row["verdict"] == "worse"
    assert "diverged 1/3, reference 0/3" in row["note"]
    assert (row["seeds"], row["diverged"]) == (2, 1)


def test_an_arm_that_trains_where_its_reference_always_diverges_is_better() -> None:
    values = {"base": {0: np.nan, 1: np.nan}, "x": {0: 2.0, 1: 2.1}}
    row = by_arm(effects(frame(values), star(values), HOLM)[0])["x"]
    assert row["verdict"] == "better"
    assert "reference 2/2" in row["note"]


def test_survivors_of_a_diverging_reference_never_make_an_arm_worse() -> None:
    values = studies.values({"base": 0, "x": 0.05}, range(4), sd=0.001)
    values["base"][3] = np.nan
    row = by_arm(effects(frame(values), star(values), HOLM)[0])["x"]
    assert row["verdict"] == "undecided"


def test_bootstrap_only_from_ten_seeds_on_and_the_same_at_every_run() -> None:
    nine, ten = (studies.values({"base": 0, "x": 0.01}, range(n)) for n in (9, 10))
    assert np.isnan(by_arm(effects(frame(nine), star(nine), HOLM)[0])["x"]["bootstrap_low"])
    one, two = (by_arm(effects(frame(ten), star(ten), HOLM)[0])["x"] for _ in range(2))
    assert one["bootstrap_low"] == two["bootstrap_low"]
    assert one["bootstrap_low"] < one["difference"] < one["bootstrap_high"]


def test_identical_arms_are_equivalent_and_not_an_error() -> None:
    same = {s: 2.0 + 0.1 * s for s in range(3)}
    values = {"base": same, "x": dict(same), "y": dict(same)}
    table, _ = effects(frame(values), star(values), HOLM)
    assert by_arm(table)["x"]["verdict"] == "equivalent"
    assert list(table.columns) == COLUMNS


@pytest.mark.parametrize(
    ("correction", "design"), [("holm", "star"), ("dunnett", "star"), ("dunnett", "ladder")]
)
def test_no_effect_is_called_better_or_worse_at_most_at_the_stated_rate(
    correction: str, design: str
) -> None:
    studies_count, arms = (400 if design == "star" else 200), 5
    rule = Rule(correction=correction, smallest_effect=0.0)
    names = ["base", *(f"a{i}" for i in range(1, arms))]
    references: dict[str, str | None] = {"base": None}
    references |= {n: ("base" if design == "star" else names[i]) for i, n in enumerate(names[1:])}
    rng, wrong, covered = np.random.default_rng(11), 0, 0
    data = frame({n: dict.fromkeys(range(3), 0.0) for n in names})
    for _ in range(studies_count):
        block = rng.normal(0, 0.02, 3)[data["seed"]]
        data["value"] = 2.0 + block + rng.normal(0, 0.002, len(data))
        table = effects(data, references, rule)[0].iloc[1:]
        wrong += table["verdict"].isin(["better", "worse"]).any()
        covered += ((table["single_low"] < 0) & (table["single_high"] > 0)).sum()
    limit = 0.05 + 3 * np.sqrt(0.05 * 0.95 / studies_count)
    assert wrong / studies_count <= limit
    assert wrong / studies_count >= 0.02, "so rarely wrong that power is being given away"
    assert 0.93 <= covered / (studies_count * (arms - 1)) <= 0.97


def test_planted_effects_are_found() -> None:
    rng, found = np.random.default_rng(5), 0
    sd, seeds = 0.002, 3
    effect = 6 * sd * np.sqrt(2 / seeds)
    for _ in range(60):
        truth = {"base": 0, "x": -effect, "n1": 0, "n2": 0, "n3": 0}
        values = studies.values(truth, range(seeds), sd=sd, rng=int(rng.integers(2**31)))
        found += (
            by_arm(effects(frame(values), star(values), DUNNETT)[0])["x"]["verdict"] == "better"
        )
    assert found >= 56
