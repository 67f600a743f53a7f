"""What somebody who distrusts the report would try first."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
import studies
from statsmodels.stats.multitest import multipletests

from ablate.analysis import judge, load
from ablate.analysis.estimate import fit
from ablate.analysis.pictures import effects_picture, save


def noisy(times: float, seeds: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(itertools.product("abcde", range(seeds)), columns=["arm", "seed"])
    sd = np.where(frame["arm"] == "c", times, 1.0) * 0.002
    block = rng.normal(0, 0.02, seeds)[frame["seed"]]
    return frame.assign(value=2 + block + sd * rng.normal(0, 1, len(frame)))


def test_an_arm_whose_noise_is_not_the_others_is_named_by_the_exact_test() -> None:
    data = noisy(20.0)
    model = fit(data["arm"], data["seed"], data["value"])
    assert list(model.uneven) == ["c"]
    assert 7 < model.uneven["c"] < 60
    assert fit(*(noisy(1.0)[c] for c in ("arm", "seed", "value"))).uneven == {}
    # Its estimate by the model of the others, and the rest.
    others = data[data["arm"] != "c"]
    alone = smf.ols("value ~ C(arm) + C(seed)", others).fit()
    whole = smf.ols("value ~ C(arm) + C(seed)", data).fit()
    mine = (whole.ssr - alone.ssr) / (whole.df_resid - alone.df_resid)
    variance = (5 * mine - alone.mse_resid) / 4
    assert model.uneven["c"] == pytest.approx(np.sqrt(variance / alone.mse_resid), rel=1e-6)


def test_a_study_with_a_noisy_arm_says_so(tmp_path: Path) -> None:
    values = studies.values(dict.fromkeys(("base", "rope", "bias", "rms"), 0.0), range(5))
    values["bias"] = {s: v + 0.1 * (-1) ** s for s, v in values["bias"].items()}
    notes = judge(load(studies.write_study(tmp_path / "s", values).path)).notes
    assert any(note.startswith("bias: its noise is") for note in notes)


def test_arms_that_came_to_the_same_values_do_not_differ(tmp_path: Path) -> None:
    same = {s: 2.0 + 0.1 * s for s in range(3)}
    values = {"base": same, "rope": same, "bias": {s: v + 0.1 for s, v in same.items()}}
    j = judge(load(studies.write_study(tmp_path / "s", values).path))
    row = j.table.set_index("arm").loc["rope"]
    assert (row["difference"], row["low"], row["high"]) == (0.0, 0.0, 0.0)
    assert (row["verdict"], row["note"], row["p"]) == ("equivalent", "", 1.0)


def test_names_that_mean_something_to_a_formatter_are_only_names(tmp_path: Path) -> None:
    names = {"base": 0.0, r"$\frac$ {x} %s": -0.03, "größe=学习率": 0.0}
    j = judge(load(studies.write_study(tmp_path / "s", studies.values(names)).path))
    with pytest.warns(UserWarning, match="Glyph"):  # the font of the PNG has no Chinese
        save(effects_picture(j), tmp_path / "effects")
    assert r"$\frac$ {x} %s" in (tmp_path / "effects.svg").read_text(encoding="utf-8")


def test_every_number_of_the_table_is_that_of_statsmodels_with_cells_missing(
    tmp_path: Path,
) -> None:
    values = studies.values({"base": 0, "rope": -0.03, "bias": 0.004, "rms": 0.0}, range(4))
    del values["rope"][1]
    values["bias"][3] = "failed"  # type: ignore[assignment]
    table = judge(load(studies.write_study(tmp_path / "s", values).path)).table.set_index("arm")
    rows = [(a, s, v) for a, own in values.items() for s, v in own.items() if v != "failed"]
    data = pd.DataFrame(rows, columns=["arm", "seed", "value"]).astype({"value": float})
    model = smf.ols("value ~ C(arm, Treatment('base')) + C(seed)", data).fit()
    names = {a: f"C(arm, Treatment('base'))[T.{a}]" for a in ("rope", "bias", "rms")}
    holm = multipletests([model.pvalues[n] for n in names.values()], 0.05, "holm")[1]
    for (arm, name), p in zip(names.items(), holm, strict=True):
        assert table.loc[arm, "difference"] == pytest.approx(model.params[name], abs=1e-12)
        assert table.loc[arm, "error"] == pytest.approx(model.bse[name])
        assert table.loc[arm, "p"] == pytest.approx(p)
        single = table.loc[arm, ["single_low", "single_high"]].tolist()
        assert single == pytest.approx(model.conf_int(0.05).loc[name].tolist())
        both = table.loc[arm, ["equivalent_low", "equivalent_high"]].tolist()
        assert both == pytest.approx(model.conf_int(0.10).loc[name].tolist())
