"""Every table and plot of the report, on a study that gives it something to say."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import studies
from demos import DEMOS
from rich.console import Console

from ablate.analysis import judge, load
from ablate.analysis.cells import cells
from ablate.analysis.display import decimals
from ablate.analysis.latex import latex_table
from ablate.analysis.material import Material
from ablate.analysis.registry import SECTIONS, sections
from ablate.analysis.terminal import show

GOLDEN = Path(__file__).parent / "golden"
FROM = {
    "claims": "claimed",
    "factor_effects": "factorial",
    "attribution": "ladder",
    "equivalents": "ladder",
    "sensitivity": "bracket",
    "u_curves": "bracket",
    "stability": "bracket",
    "residuals": "factorial",
    "tail_noise": "factorial",
    "costs": "sizes",
    "pareto": "sizes",
    "scaling": "sizes",
}
"""The study on which the golden table is made; a new section names one."""


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Material]:
    root = tmp_path_factory.mktemp("demos")
    return {name: Material(judge(load(make(root / name).path))) for name, make in DEMOS.items()}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.name)
def test_each_table_is_the_golden_one(section, materials: dict[str, Material]) -> None:
    material = materials[FROM[section.name]]
    frame = section.make(material)
    text = cells(frame, section.columns, decimals(material.j)).to_string(index=False) + "\n"
    golden = GOLDEN / f"{section.name}.txt"
    if os.environ.get("ABLATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    pd.testing.assert_frame_equal(frame, section.make(material))  # nothing was changed on the way


@pytest.mark.parametrize("section", [s for s in SECTIONS if s.plots], ids=lambda s: s.name)
def test_each_plot_is_one_that_plotly_knows(section, materials: dict[str, Material]) -> None:
    material = materials[FROM[section.name]]
    frame = section.make(material)
    for plot in section.plots:
        spec = plot(frame, material)
        assert spec is not None
        figure = go.Figure(spec)  # refuses what it does not know
        assert sum(len(trace.y) for trace in figure.data) >= len(frame) / 2


@pytest.mark.parametrize("name", DEMOS)
def test_tables_that_have_nothing_to_say_are_left_out(
    name: str, materials: dict[str, Material]
) -> None:
    shown = {section.name for section, _ in sections(materials[name])}
    assert ("attribution" in shown) == (name == "ladder")
    assert ("u_curves" in shown) == (name == "bracket")
    assert ("scaling" in shown) == (name == "sizes")
    assert ("factor_effects" in shown) == (name in ("factorial", "sizes"))


LONG = "layer_norm_type-my_package.norms-MyNorm+activation_type-mine"


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("name", ["bracket", "factorial", "ladder"])
def test_a_narrow_terminal_has_numbers_in_every_table_and_names_what_it_left_out(
    name: str, width: int, materials: dict[str, Material]
) -> None:
    """Whatever the length of the arms' names."""
    material = materials[name]
    made = [
        (s, frame.assign(**{next(iter(s.columns)): [f"{LONG}-{i}" for i in range(len(frame))]}))
        for s, frame in sections(material)
        if s.terminal
    ]
    assert made
    file = io.StringIO()
    show(material.j, Console(file=file, width=width, highlight=False), made)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    for section, frame in made:
        top = lines.index(section.title) + 2
        first = re.split(r" {2,}", lines[top + 2].strip())  # the first row's name, and the rest
        assert any(character.isdigit() for character in "".join(first[1:]))
        text = cells(frame, section.columns, 4)
        gone = [t for c in text if (t := section.columns[c][0]) not in lines[top]]
        if gone:
            below = " ".join(lines[top + 2 :])
            assert f"Left out at {width} columns: {', '.join(gone)} (all in the report)." in below


def test_what_a_column_says_stands_where_the_column_is(materials: dict[str, Material]) -> None:
    for section in SECTIONS:
        assert set(section.terms) <= set(section.columns)
    stability = next(s for s in SECTIONS if s.name == "stability")
    said = stability.noted(["arm", "rate_high"], "95 %")
    assert "At most: the share" in said
    assert "Spike score" not in said
    factors = next(s for s in SECTIONS if s.name == "factor_effects")
    assert "99.7 % interval of each effect alone" in factors.said(["low"], "99.7 %")
    for section in SECTIONS:
        assert all(title for title, _ in section.columns.values()), "a column without a header"


def test_latex_of_every_table_is_balanced(materials: dict[str, Material]) -> None:
    for name in DEMOS:
        for section, frame in sections(materials[name]):
            text = cells(frame, section.columns, 4)
            made = latex_table(section, text, "95 %")
            assert made.count("{") == made.count("}")
            rows = made.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
            assert len(rows) == len(frame)
            assert {row.count(" & ") for row in rows} == {len(text.columns) - 1}


def test_no_table_shows_the_survivors_of_an_arm_as_if_they_were_the_arm(tmp_path: Path) -> None:
    values = studies.values({"base": 0, "rope": -0.03, "lucky": -0.2})
    values["lucky"][1] = "diverged"  # type: ignore[assignment]
    made = sections(Material(judge(load(studies.write_study(tmp_path / "s", values).path))))
    tables = {section.name: frame for section, frame in made}
    assert "lucky" not in set(tables["pareto"]["arm"])
    assert tables["pareto"].query("arm == 'rope'")["front"].all()
    steps = tables["equivalents"].set_index("arm")["steps"]
    assert np.isnan(steps["lucky"])
    assert np.isfinite(steps["rope"])
