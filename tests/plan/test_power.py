"""The stated power is the rate at which the report finds an effect; the noise is read off disk."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ablate.analysis.multiplicity import max_t_quantile
from ablate.plan.noise import between_seeds, noise_of, noise_on_disk, residual_sd
from ablate.plan.power import POWER, Noise, Test
from ablate.rundir import State, StudyDir, write_json
from benchmarks import power as benchmark


def made(**changes) -> Test:
    given = {"arms": 5, "seeds": 3, "comparisons": 4, "alpha": 0.05, **changes}
    return Test(**given)


def test_two_arms_agree_with_the_textbook_paired_t_test() -> None:
    from statsmodels.stats.power import TTestPower

    # The residual sd of two arms is the sd of their differences over the root of 2.
    for seeds in (3, 5, 12):
        test = made(arms=2, seeds=seeds, comparisons=1)
        theirs = TTestPower().solve_power(nobs=seeds, alpha=0.05, power=0.8)
        # Theirs counts the wrong side too, which at this size is nothing.
        assert test.detectable(1 / 2**0.5) == pytest.approx(theirs, rel=1e-3)


def test_unpaired_agrees_with_the_textbook_two_sample_t_test() -> None:
    from statsmodels.stats.power import TTestIndPower

    for seeds in (3, 6):
        test = made(arms=2, seeds=seeds, comparisons=1, paired=False)
        theirs = TTestIndPower().solve_power(nobs1=seeds, alpha=0.05, power=0.8)
        assert test.detectable(1.0) == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(("m", "df"), [(2, 5), (4, 20), (9, 60)])
def test_the_dunnett_value_is_the_one_that_the_report_uses(m, df) -> None:
    theirs = max_t_quantile(0.5 + 0.5 * np.eye(m), df, 0.05)  # by quasi-random points
    test = made(arms=df + 1, seeds=2, comparisons=m, correction="dunnett")
    assert test.df == df
    assert test.critical() == pytest.approx(theirs, rel=2e-3)
    apart = replace(test, forest=tuple(range(-1, m)))
    holm = replace(test, correction="holm")
    assert test.critical() < apart.critical() < holm.critical()


@pytest.mark.parametrize(
    "forest",
    [(-1, 0, 1, 2, 3), (-1, 0, 0, 1, 1, 2), (4, -1, 1, 1, 1, 4)],
    ids=["ladder", "tree", "any order"],
)
def test_the_critical_value_of_a_ladder_is_the_one_that_the_report_uses(forest) -> None:
    arms = len(forest)
    edges = np.zeros((arms, arms))
    for arm, below in enumerate(forest):
        edges[arm, [arm, below]] = 1, -1
    edges = edges[np.array(forest) >= 0]
    theirs = max_t_quantile(edges @ edges.T / 2, 2 * (arms - 1), 0.05)
    test = made(arms=arms, seeds=3, comparisons=arms - 1, correction="dunnett", forest=forest)
    assert test.critical() == pytest.approx(theirs, rel=2e-3)


@settings(max_examples=40)
@given(
    arms=st.integers(2, 12),
    seeds=st.integers(2, 12),
    smallest=st.floats(0, 3),
    effect=st.floats(0.01, 10),
)
def test_power_rises_with_the_effect_and_the_seeds_and_falls_with_noise_and_arms(
    arms, seeds, smallest, effect
) -> None:
    test = made(arms=arms, seeds=seeds, comparisons=arms - 1, smallest_effect=smallest)
    here = test.power(effect, 1.0)
    assert 0 <= here <= 1
    assert test.power(effect * 1.1, 1.0) >= here - 1e-9
    assert replace(test, smallest_effect=smallest + 0.5).power(effect, 1.0) <= here + 1e-9
    assert replace(test, comparisons=arms).power(effect, 1.0) <= here + 1e-9
    if effect > smallest:
        assert replace(test, seeds=seeds + 1).power(effect, 1.0) >= here - 1e-9
    found = test.detectable(1.0)
    assert found is not None
    assert test.power(found, 1.0) == pytest.approx(POWER, abs=1e-6)
    low, high = test.power_range(effect, Noise(sd=1.0, df=4, source="x"))
    assert low <= high
    if effect > smallest:
        assert low <= here <= high


def test_an_effect_of_just_the_smallest_size_is_never_likely_to_be_called_better() -> None:
    test = made(seeds=200, smallest_effect=0.5)
    assert test.power(0.5, 1.0) == pytest.approx(0.5, abs=1e-3)
    assert test.seeds_needed(0.5, 1.0) is None
    assert test.seeds_needed(0.6, 1.0) > 100


def test_more_seeds_detect_less_and_one_seed_nothing() -> None:
    effects = [made(seeds=n).detectable(1.0) for n in (1, 2, 3, 8)]
    assert effects[0] is None
    assert effects[1] > effects[2] > effects[3] > 0
    assert made(seeds=1).power(9.0, 1.0) == 0
    needed = made().seeds_needed(1.0, 1.0)
    assert made(seeds=needed).detectable(1.0) <= 1.0 < made(seeds=needed - 1).detectable(1.0)


REDUCED = (benchmark.Setting(4, 3, "holm", 0.5), benchmark.Setting(6, 4, "dunnett", 1.5))


def test_the_report_finds_planted_effects_at_the_stated_rate() -> None:
    for setting, multiple, stated, found in benchmark.rates(400, REDUCED):
        three_errors = 3 * np.sqrt(stated * (1 - stated) / 400)
        assert abs(found - stated) < 0.01 + three_errors, (setting, multiple)


@pytest.mark.slow
def test_the_report_finds_planted_effects_within_three_points() -> None:
    for setting, multiple, stated, found in benchmark.rates(2000):
        assert abs(found - stated) <= 0.03, (setting, multiple, stated, found)


@pytest.mark.parametrize("seeds", [3, 4, 8])
def test_the_range_after_a_pilot_holds_the_true_power_four_times_in_five(seeds) -> None:
    share, truth = benchmark.coverage(seeds, 4000)
    assert 0.2 < truth < 0.95
    assert 0.77 <= share <= 0.83


def test_the_residual_leaves_out_what_arms_and_seeds_explain() -> None:
    additive = {arm: {seed: 10 * i + seed for seed in range(4)} for i, arm in enumerate("abc")}
    sd, df = residual_sd(additive)
    assert sd == pytest.approx(0, abs=1e-12)
    assert df == 6
    assert residual_sd({"a": {0: 1.0, 1: 2.0}}) == (0.0, 0)
    assert between_seeds({"a": {0: 1.0, 1: 2.0}}) == (pytest.approx(0.5**0.5), 1)
    rng = np.random.default_rng(0)
    noisy = {str(a): {s: float(a + s + rng.normal(0, 0.5)) for s in range(60)} for a in range(5)}
    assert residual_sd(noisy)[0] == pytest.approx(0.5, rel=0.1)


def _study(
    runs, name: str, values: dict[str, list[float | None]], fingerprint: str = "base"
) -> None:
    study = StudyDir(runs / name)
    trials = []
    for arm, row in values.items():
        for seed, value in enumerate(row):
            id = f"{arm}-s{seed}"
            trials.append(
                {"id": id, "arm": arm, "seed": seed, "lr": None, "fingerprint": f"{arm}{seed}"}
            )
            folder = study.trial(id)
            folder.create({}, 1)
            if value is not None:
                folder.write_state(State(status="done"))
                write_json(folder.summary_path, {"val/bpb": value})
            else:
                folder.write_state(State(status="diverged"))
    if fingerprint == "base":
        trials[0]["fingerprint"] = fingerprint
    study.write_manifest({"schema": 1, "baseline": "baseline", "trials": trials})


def test_noise_is_pooled_over_finished_studies_with_the_same_baseline(tmp_path) -> None:
    assert noise_on_disk(str(tmp_path), "val/bpb", {"base"}).sd is None
    _study(tmp_path, "other", {"baseline": [1.0, 9.0], "a": [5.0, 2.0]}, fingerprint="different")
    none = noise_on_disk(str(tmp_path), "val/bpb", {"base"})
    assert none.sd is None
    assert "has finished trials of this baseline" in none.source
    _study(tmp_path, "same", {"baseline": [1.0, 2.0], "a": [1.0, 3.0], "broken": [7.0, None]})
    found = noise_on_disk(str(tmp_path), "val/bpb", {"base"})
    assert found.df == 1
    assert found.source == "same"
    assert found.sd == pytest.approx(
        0.5
    )  # residuals are all 1/4: four squares of 1/16 over one degree
    (tmp_path / "same" / "trials" / "a-s0" / "summary.json").write_text("{")
    assert noise_on_disk(str(tmp_path), "val/bpb", {"base"}).sd is None, (
        "a damaged study is passed over"
    )


def test_a_pilot_of_the_baseline_alone_is_the_scatter_between_its_seeds(tmp_path) -> None:
    _study(tmp_path, "pilot", {"baseline": [1.0, 2.0, 3.0]})
    study = StudyDir(tmp_path / "pilot")
    manifest = study.manifest()
    rest = [{"id": f"a-s{s}", "arm": "a", "seed": s, "lr": None, "fingerprint": f"a{s}"}
            for s in range(3)]  # fmt: skip
    study.write_manifest({**manifest, "trials": manifest["trials"] + rest})
    found = noise_on_disk(str(tmp_path), "val/bpb", {"base"})
    assert (found.kind, found.df, found.sd) == ("pilot", 2, pytest.approx(1.0))
    low, high = found.range()
    assert stats.chi2.cdf(2 / low**2, 2) - stats.chi2.cdf(2 / high**2, 2) == pytest.approx(0.8)
    both = noise_of({"x": {"a": {0: 1.0, 1: 2.0}, "b": {0: 2.0, 1: 4.0}}}, "runs")
    assert both.kind == "studies"
    assert both.sd < both.unpaired, "pairing removes what the seeds share"


def test_a_trial_that_several_studies_hold_is_one_sample(tmp_path) -> None:
    values: dict[str, list[float | None]] = {"baseline": [1.0, 2.0], "a": [1.0, 3.0]}
    _study(tmp_path, "first", values)
    alone = noise_on_disk(str(tmp_path), "val/bpb", {"base"})
    _study(tmp_path, "again", values)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    found = noise_on_disk(str(tmp_path), "val/bpb", {"base"})
    assert (
        (found.df, found.sd, found.unpaired)
        == (alone.df, alone.sd, alone.unpaired)
        == (
            1,
            pytest.approx(0.5),
            alone.unpaired,
        )
    )
    assert "," not in found.source, "one study says all that there is"
    # Another arm beside the same baseline is new; the baseline's own scatter is not.
    _study(tmp_path, "more", {"baseline": [1.0, 2.0], "b": [1.0, 4.0]})
    more = noise_on_disk(str(tmp_path), "val/bpb", {"base"})
    assert more.df == 2
    assert more.unpaired == pytest.approx(((0.5 + 2.0 + 4.5) / 3) ** 0.5)
    # The pilot alone: a copy adds nothing either.
    for name in ("first", "again", "copy", "more"):
        shutil.rmtree(tmp_path / name)
    _study(tmp_path, "pilot", {"baseline": [1.0, 2.0, 3.0]})
    shutil.copytree(tmp_path / "pilot", tmp_path / "pilot-copy")
    assert noise_on_disk(str(tmp_path), "val/bpb", {"base"}).df == 2
