"""The page: self-contained, and drawn without a complaint by a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import studies
from browser import CHROMIUM, Page, browser
from demos import ladder, with_levels

from ablate.analysis import judge, load
from ablate.analysis.comparison import compare, write_comparison
from ablate.analysis.material import Material
from ablate.analysis.page import page
from ablate.analysis.publish import publish
from ablate.analysis.registry import sections


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("page")
    long = "activation=swiglu+norm=rms+position=rope"
    values = studies.values({"base": 0, long: -0.03, "qk_norm": 0.02})
    values["qk_norm"][1] = "diverged"  # type: ignore[assignment]
    study = studies.write_study(tmp_path / "s", values)
    return publish(judge(load(study.path)), tmp_path / "report").parent


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies with other code, of which one lost a trial, and a third that is longer."""
    root = tmp_path_factory.mktemp("comparison")
    long = "activation=swiglu+norm=rms+position=rope"
    values = studies.values({"base": 0, long: -0.03, "qk_norm": 0.02, "<b>bold": 0})
    again = studies.values({"base": 0, long: -0.031, "qk_norm": 0.001}, rng=3)
    again["qk_norm"][1] = "diverged"  # type: ignore[assignment]
    code = {"code": {"version": "0.2.0", "commit": "fff", "dirty": False}}
    made = [
        studies.write_study(root / "first", values),
        studies.write_study(root / "again", again, manifest_extra=code),
        studies.write_study(root / "longer", values, steps=60),
    ]
    return write_comparison(compare([judge(load(s.path)) for s in made]), root / "report")


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A factorial of two factors whose levels have long names, and a ladder of two orders."""
    root = tmp_path_factory.mktemp("long")
    norm, act = "layer_norm_type-my_package.norms-MyNorm", "activation_type-my_package.acts-Mine"
    effects = {"base": 0.0, norm: -0.02, act: 0.03, f"{norm}+{act}": 0.02}
    made = studies.write_study(
        root / "grid",
        studies.values(effects, range(4)),
        design="factorial",
        diffs={a: {f"model.{f}": [False, True] for f in a.split("+") if f != "base"}
               for a in effects},
    )  # fmt: skip
    levels = {
        a: {"norm": norm if norm in a else "baseline", "act": act if act in a else "baseline"}
        for a in effects
    }
    with_levels(made, levels, {"norm": [norm], "act": [act]})
    pages = {"grid": made, "ladder": ladder(root / "ladder")}
    return {n: publish(judge(load(s.path)), root / f"{n}-report") for n, s in pages.items()}


def test_text_of_a_study_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    study = studies.write_study(
        tmp_path / "s",
        studies.values({"base": 0, evil.replace("/", "|"): 0.1}),
        manifest_extra={"question": evil},
    )
    material = Material(judge(load(study.path)))
    text = page(material, sections(material))
    assert evil not in text
    assert "<script>alert" not in text


def test_the_page_forbids_the_network_and_names_no_address_to_load(folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text)
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 6_000_000


INTERACT = """(() => {
const seen = {};
const traces = (id) => document.getElementById(id).data.length;
const flip = (id) => document.getElementById(id).click();
seen.all = traces("curve0");
flip("bands"); seen.lines = traces("curve0"); flip("bands");
flip("spikes"); seen.calm = traces("curve0"); flip("spikes");
flip("minus");
seen.title = document.getElementById("curve0").layout.yaxis.title.text; flip("minus");
flip("log"); seen.type = document.getElementById("curve0").layout.yaxis.type; flip("log");
const metric = document.getElementById("metric");
metric.value = "curve1"; metric.dispatchEvent(new Event("change"));
seen.hidden = [document.getElementById("curve0").hidden, document.getElementById("curve1").hidden];
seen.first = document.querySelector("h2").textContent;
seen.dark = getComputedStyle(document.body).backgroundColor !== "rgb(255, 255, 255)";
return seen;
})()"""

LAYOUT = """(() => {
const box = (e) => e.getBoundingClientRect();
const shown = [...document.querySelectorAll(".figure")].filter((e) => !e.hidden);
const drawn = shown.map((e) => box(e.querySelector(".main-svg")));
const flow = [...document.querySelectorAll("body > *, section > *")]
  .filter((e) => !["SCRIPT", "SECTION", "svg"].includes(e.tagName) && box(e).height > 0).map(box);
const whole = (id) => {
  const e = document.getElementById(id);
  return e.scrollWidth <= e.clientWidth;
};
return {
  page: document.documentElement.scrollWidth <= window.innerWidth,
  figures: drawn.length >= 3,
  wide: drawn.every((b, i) => Math.abs(b.width - box(shown[i]).width) < 2),
  high: drawn.every((b, i) => b.height <= box(shown[i]).height + 1),
  area: shown.every((e) => e._fullLayout._size.h > 60 && e._fullLayout._size.w > 120),
  apart: flow.every((b, i) => i === 0 || b.top >= flow[i - 1].bottom - 1),
  verdicts: whole("verdicts"),
  arms: whole("arms"),
};
})()"""

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("ABLATE_TEST_INSTALL") != "1",
    reason="chromium is not installed; ABLATE_TEST_INSTALL=1 makes this an error",
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.fail("ABLATE_TEST_INSTALL=1, but there is no chromium: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.chromium
@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_chromium_draws_it_without_errors_or_requests(
    folder: Path, chromium: Page, width: int, dark: bool
) -> None:
    chromium.open(folder / "index.html", width, dark=dark)
    assert chromium.value(INTERACT) == {
        "all": 8,  # three means, three bands, one diverged trial, its event
        "lines": 5,
        "calm": 7,
        "title": "train/loss minus base",
        "type": "log",
        "hidden": [True, False],
        "first": "Verdicts",
        "dark": dark,
    }
    chromium.settle()
    assert chromium.complaints() == []
    assert chromium.asked_for() == []


@pytest.mark.chromium
@needs_chromium
@pytest.mark.parametrize(("first", "then"), [(1280, 390), (390, 768), (768, 1280), (390, 390)])
def test_nothing_is_cut_or_overlaps_at_any_width_nor_after_a_change_of_it(
    folder: Path, chromium: Page, first: int, then: int
) -> None:
    chromium.open(folder / "index.html", first, dark=first < then)
    chromium.resize(then)
    chromium.settle()
    assert {k: v for k, v in chromium.value(LAYOUT).items() if not v} == {}
    assert chromium.complaints() == []
    assert chromium.asked_for() == []


NAMED = """(() => {
const box = (e) => e.getBoundingClientRect();
const all = (id, what) => [...document.querySelectorAll(`#${id} ${what}`)];
const inside = (e) => {
  const own = box(e), figure = box(e.closest(".figure"));
  return own.left >= figure.left - 1 && own.right <= figure.right + 1;
};
const words = (id, what) => all(id, what).map((e) => e.textContent);
const written = (id) => words(id, ".textpoint text").filter(Boolean);
const key = [...document.querySelectorAll(".key")].filter((e) => box(e).height > 0);
return {
  steps: words("attribution-attribution", ".ytick text"),
  levels: words("factor_effects-interaction", ".xtick text").length,
  out: [...document.querySelectorAll(".legendtext, .xtick text, .ytick text")]
    .filter((e) => box(e).width > 0 && !inside(e)).map((e) => e.textContent),
  key: key.flatMap((e) => [...e.querySelectorAll("span")].map((s) => s.textContent)),
  points: document.getElementById("pareto-pareto") ? written("pareto-pareto").length : -1,
  close: [...document.querySelectorAll(".figure + .scroll, .figure + details, .key + details")]
    .filter((e) => parseFloat(getComputedStyle(e).marginTop) < 10).length,
};
})()"""


@pytest.mark.chromium
@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["grid", "ladder"])
def test_what_is_drawn_has_a_name_and_no_name_is_cut(
    long_names: dict[str, Path], chromium: Page, name: str, width: int
) -> None:
    chromium.open(long_names[name], width)
    found = chromium.value(NAMED)
    assert found["out"] == []
    assert found["close"] == 0
    if name == "ladder":
        assert sorted(found["steps"]) == ["norm", "rope", "total"]
    else:
        assert found["levels"] == 2
    arms = {"grid": 4, "ladder": 4}[name]
    assert found["points"] >= 1 if width > 600 else len(found["key"]) == arms
    assert chromium.complaints() == []


COMPARED = """(() => {
const seen = {};
const traces = (id) => document.getElementById(id).data.length;
const flip = (id) => document.getElementById(id).click();
seen.effects = traces("effects");
seen.all = traces("curve0");
flip("bands"); seen.lines = traces("curve0"); flip("bands");
flip("minus");
seen.title = document.getElementById("curve0").layout.yaxis.title.text; flip("minus");
seen.first = document.querySelector("h2").textContent;
seen.bold = document.querySelectorAll("b").length;
return seen;
})()"""


@pytest.mark.chromium
@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_the_page_of_several_studies_is_drawn_whole_at_any_width(
    comparison: Path, chromium: Page, width: int, dark: bool
) -> None:
    chromium.open(comparison, width, dark=dark)
    assert chromium.value(COMPARED) == {
        "effects": 16,  # three rows of two changes and two of a third, a point and a line each
        "all": 22,  # 4 + 3 + 4 arms, each with its band
        "lines": 11,
        "title": "train/loss minus the baseline of its study",
        "first": "Side by side",
        "bold": 0,
    }
    chromium.settle()
    found = chromium.value(LAYOUT)
    del found["figures"], found["arms"]  # two figures; a table as wide as there are studies
    assert {k: v for k, v in found.items() if not v} == {}
    assert chromium.complaints() == []
    assert chromium.asked_for() == []
