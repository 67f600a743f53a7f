"""Several studies side by side: what may be pooled, what is refused, what is flagged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
from rich.console import Console

from ablate.analysis import judge, load
from ablate.analysis.comparison import Comparison, compare, show_comparison
from ablate.analysis.comparison_page import comparison_page

TRUTH = {"base": 0.0, "rope": -0.03}


def compared(root: Path, *second: Any, **changes: Any) -> Comparison:
    """A study of seeds 0 to 2, and another with these changes (by default with seeds 3 to 5)."""
    first = studies.write_study(root / "first", studies.values(TRUTH, rng=1))
    values = second[0] if second else studies.values(TRUTH, (3, 4, 5), rng=2)
    other = studies.write_study(root / "other", values, **changes)
    return compare([judge(load(s.path)) for s in (first, other)])


def test_alike_studies_are_pooled_over_their_seeds(tmp_path: Path) -> None:
    c = compared(tmp_path)
    assert c.differences["field"].tolist() == ["seeds"]
    one, two = c.table["difference"]
    assert c.table["pooled"].tolist() == pytest.approx([(one + two) / 2] * 2)
    assert c.headline.endswith("1 pooled, of which 0 disagree beyond the noise.")


def longer(arm: str, seed: int, tree: dict[str, Any]) -> None:
    tree["train"]["steps"] = 80


def elsewhere(arm: str, seed: int, tree: dict[str, Any]) -> None:
    tree["data"]["corpus"] = "wiki"


def coarser(arm: str, seed: int, tree: dict[str, Any]) -> None:
    tree["precision"]["name"] = "bf16"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"config_change": longer}, "train.steps"),
        ({"config_change": elsewhere}, "data.corpus"),
        ({"config_change": coarser}, "precision.name"),
        ({"summary": lambda a, s: {"data_fingerprint": "e" * 64}}, "data_fingerprint"),
        ({"decide": studies.DECIDE | {"metric": "val/loss"}}, "metric"),
    ],
)
def test_other_conditions_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    c = compared(tmp_path, **change)
    assert c.refused == [field]
    assert not len(c.table) or c.table["pooled"].isna().all()
    assert any(field in note for note in c.notes)
    assert field in comparison_page(c)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"manifest_extra": {"code": {"commit": "fff"}}}, "commit"),
        ({"summary": lambda a, s: {"torch": "3.0"}}, "torch"),
        ({"decide": studies.DECIDE | {"smallest_effect": 0.01}}, "decision rule"),
    ],
)
def test_other_circumstances_are_flagged_and_pooled(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    c = compared(tmp_path, **change)
    assert not c.refused
    assert field in c.differences["field"].tolist()
    assert np.isfinite(c.table["pooled"]).all()


def test_the_same_trials_are_no_second_evidence(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "first", studies.values(TRUTH))
    again = studies.write_study(tmp_path / "again", studies.values(TRUTH))
    manifest = again.manifest()
    for mine, theirs in zip(manifest["trials"], study.manifest()["trials"], strict=True):
        mine["fingerprint"] = theirs["fingerprint"]
    again.write_manifest(manifest)
    c = compare([judge(load(s.path)) for s in (study, again)])
    assert c.table["pooled"].isna().all()
    assert "same trials" in c.table["note"].iloc[0]


def test_survivors_are_not_pooled_and_are_counted_on_the_page(tmp_path: Path) -> None:
    values = studies.values(TRUTH, (3, 4, 5), rng=2)
    values["rope"][4] = "diverged"  # type: ignore[assignment]
    c = compared(tmp_path, values)
    assert c.table["pooled"].isna().all()
    assert "2 (1 div.)" in comparison_page(c)


def test_studies_without_a_change_in_common_say_so(tmp_path: Path) -> None:
    c = compared(tmp_path, studies.values({"base": 0.0, "bias": 0.01}, (3, 4, 5)))
    assert c.headline.startswith("No change was made by two")
    assert "Arms by study" in comparison_page(c)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_comparison_fits_the_terminal_with_whole_names(tmp_path: Path, width: int) -> None:
    arm = "position-rope_500k+norm-rms"
    made = [
        studies.write_study(tmp_path / name, studies.values({"base": 0.0, arm: -0.03}, rng=i))
        for i, name in enumerate(("first", "other"))
    ]
    stream = io.StringIO()
    console = Console(width=width, file=stream, highlight=False)
    show_comparison(compare([judge(load(s.path)) for s in made]), console)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum(arm in line for line in lines[:8]) == 2, "no name is folded"
    titles = next(line for line in lines if "difference" in line)
    assert "verdict" in titles
    assert ("change" in titles) == (width == 200)


@pytest.mark.parametrize("width", [60, 72, 80, 90, 100, 120])
def test_a_comparison_names_what_it_left_out_and_shows_no_half_interval(
    tmp_path: Path, width: int
) -> None:
    stream = io.StringIO()
    show_comparison(compared(tmp_path), Console(width=width, file=stream, highlight=False))
    lines = stream.getvalue().splitlines()
    titles = next(line for line in lines if "difference" in line).replace("pooled low", "PL")
    titles = titles.replace("pooled high", "PH").split()
    below = " ".join(" ".join(lines).split()).partition("Left out at")[2].partition(" (all")[0]
    gone = below.partition(": ")[2].split(", ") if below else []
    shown = {
        "low": "low",
        "high": "high",
        "pooled low": "PL",
        "pooled high": "PH",
        "seeds": "seeds",
    }
    for name, title in shown.items():
        assert (title in titles) != (name in gone), name
    assert ("low" in titles) == ("high" in titles)
    assert ("PL" in titles) == ("PH" in titles)
