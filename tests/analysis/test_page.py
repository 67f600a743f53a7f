"""The page: self-contained, and drawn without a complaint by a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
import studies

from ablate.analysis import judge, load
from ablate.analysis.material import Material
from ablate.analysis.page import page
from ablate.analysis.publish import publish
from ablate.analysis.registry import sections

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    values = studies.values({"base": 0, "rope": -0.03, "qk_norm": 0.02})
    values["qk_norm"][1] = "diverged"  # type: ignore[assignment]
    study = studies.write_study(tmp_path / "s", values)
    return publish(judge(load(study.path)), tmp_path / "report").parent


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


INTERACT = """<script>
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
seen.fits = document.documentElement.scrollWidth <= window.innerWidth;
seen.width = window.innerWidth;
seen.dark = getComputedStyle(document.body).backgroundColor !== "rgb(255, 255, 255)";
seen.drawn = Number(document.documentElement.dataset.drawn);
seen.figures = document.querySelectorAll(".figure .main-svg").length;
document.documentElement.dataset.seen = JSON.stringify(seen);
parent.postMessage(JSON.stringify(seen), "*");
</script></body>"""

# A window cannot be narrower than 500 pixels; a frame can.
FRAME = """<!doctype html><body style="margin:0"><script>
addEventListener("message", (e) => { document.documentElement.dataset.seen = e.data; });
</script><iframe src="index.html" style="border:0;width:390px;height:2000px"></iframe></body>"""


@pytest.mark.chromium
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_chromium_draws_it_without_errors_or_requests(folder: Path, width: int, dark: bool) -> None:
    if CHROMIUM is None:
        if os.environ.get("ABLATE_TEST_INSTALL") == "1":
            pytest.fail("ABLATE_TEST_INSTALL=1, but there is no chromium: apt-get install chromium")
        pytest.skip("chromium is not installed; ABLATE_TEST_INSTALL=1 makes this an error")
    html = folder / "index.html"
    html.write_text(html.read_text(encoding="utf-8").replace("</body>", INTERACT), encoding="utf-8")
    if width < 500:
        html = folder / "frame.html"
        html.write_text(FRAME, encoding="utf-8")
    net = folder / "net.json"
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={net}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--enable-logging=stderr",
        "--virtual-time-budget=10000",
        f"--window-size={width},1600",
        "--dump-dom",
        html.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    dom = done.stdout
    seen = json.loads(unescape(re.search(r'data-seen="([^"]+)"', dom)[1]))  # type: ignore[index]
    assert seen.pop("figures") >= 2 * seen.pop("drawn") >= 6, "plotly drew no figure"
    assert seen == {
        "all": 8,  # three means, three bands, one diverged trial, its event
        "lines": 5,
        "calm": 7,
        "title": "train/loss minus base",
        "type": "log",
        "hidden": [True, False],
        "first": "Verdicts",
        "fits": True,
        "width": width,
        "dark": dark,
    }
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
    # The browser's own errands have no origin; what a page asks for has one.
    events = (e.get("params", {}) for e in json.loads(net.read_text())["events"])
    asked = [
        p["url"] for p in events if "url" in p and p.get("initiator") not in (None, "not an origin")
    ]
    assert [url for url in asked if url.startswith("http")] == []
