"""The smallest detectable effect is found four times in five; the noise is read off disk."""

from __future__ import annotations

import numpy as np
import pytest

from ablate.plan.noise import noise_on_disk, residual_sd
from ablate.plan.power import detectable_effect, seeds_needed
from ablate.rundir import State, StudyDir, write_json


def test_two_arms_agree_with_the_textbook_paired_t_test() -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    # The residual sd of two arms is the sd of their differences over the root of 2.
    for seeds in (3, 5, 12):
        ours = detectable_effect(1 / 2**0.5, arms=2, seeds=seeds, alpha=0.05, comparisons=1)
        theirs = power.TTestPower().solve_power(nobs=seeds, alpha=0.05, power=0.8)
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_stated_power_is_met_in_simulation() -> None:
    from scipy import stats

    arms, seeds, sd, alpha = 4, 3, 0.3, 0.05
    effect = detectable_effect(sd, arms=arms, seeds=seeds, alpha=alpha, comparisons=arms - 1)
    assert effect is not None
    rng = np.random.default_rng(1)
    y = rng.normal(0, sd, (4000, arms, seeds)) + rng.normal(0, 1, (4000, 1, seeds))
    y[:, 1] += effect
    residual = (
        y - y.mean(2, keepdims=True) - y.mean(1, keepdims=True) + y.mean((1, 2), keepdims=True)
    )
    df = (arms - 1) * (seeds - 1)
    se = np.sqrt((residual**2).sum((1, 2)) / df * 2 / seeds)
    t = (y[:, 1].mean(1) - y[:, 0].mean(1)) / se
    found = (np.abs(t) > stats.t.ppf(1 - alpha / (arms - 1) / 2, df)).mean()
    assert found == pytest.approx(0.8, abs=0.025)


def test_more_seeds_detect_less_and_one_seed_nothing() -> None:
    effects = [
        detectable_effect(1.0, arms=5, seeds=n, alpha=0.05, comparisons=4) for n in (1, 2, 3, 8)
    ]
    assert effects[0] is None
    assert effects[1] > effects[2] > effects[3] > 0
    needed = seeds_needed(1.0, 1.0, arms=5, alpha=0.05, comparisons=4)
    assert needed is not None
    at = detectable_effect(1.0, arms=5, seeds=needed, alpha=0.05, comparisons=4)
    below = detectable_effect(1.0, arms=5, seeds=needed - 1, alpha=0.05, comparisons=4)
    assert at <= 1.0 < below


def test_the_residual_leaves_out_what_arms_and_seeds_explain() -> None:
    additive = {arm: {seed: 10 * i + seed for seed in range(4)} for i, arm in enumerate("abc")}
    sd, df = residual_sd(additive)
    assert sd == pytest.approx(0, abs=1e-12)
    assert df == 6
    assert residual_sd({"a": {0: 1.0, 1: 2.0}}) == (0.0, 0)
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
    assert "none with it" in none.source
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
