"""Code behind an import path is part of the configuration, and is looked at without running it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ablate.config.fingerprint import fingerprint
from ablate.config.sources import SOURCES, edited, sources
from ablate.plan import resolve

FORBIDDEN = "raise RuntimeError('this was imported')\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`mine.norms` uses `mine.common`, `mine` itself and a module beside the package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "beside.py").write_text(FORBIDDEN)
    (folder / "__init__.py").write_text(FORBIDDEN)
    (folder / "common.py").write_text(FORBIDDEN + "import beside\n")
    (folder / "unused.py").write_text(FORBIDDEN)
    (folder / "norms.py").write_text(FORBIDDEN + "import torch\nfrom .common import half\n")
    return tmp_path


def named(**model: Any) -> dict[str, Any]:
    return resolve({"model": model})


def test_without_import_paths_nothing_is_recorded() -> None:
    assert SOURCES not in named(layer_norm_type="rms")


def test_it_is_found_and_nothing_is_imported(package: Path) -> None:
    before = set(sys.modules)
    config = named(layer_norm_type="mine.norms:Norm")
    assert list(config[SOURCES]) == ["model.layer_norm_type"]
    assert not {m for m in set(sys.modules) - before if m.startswith(("mine", "beside", "torch"))}
    assert resolve(config) == config


@pytest.mark.parametrize(
    "file", ["mine/norms.py", "mine/common.py", "mine/__init__.py", "beside.py"]
)
def test_an_edit_of_what_is_imported_is_another_trial(package: Path, file: str) -> None:
    before = named(layer_norm_type="mine.norms:Norm")
    assert edited(before) == []
    (package / file).write_text((package / file).read_text() + "x = 1\n")
    after = named(layer_norm_type="mine.norms:Norm")
    assert fingerprint(before) != fingerprint(after)
    assert edited(before) == ["model.layer_norm_type=mine.norms:Norm"]
    assert edited(after) == []


def test_an_edit_elsewhere_and_another_place_change_nothing(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = named(layer_norm_type="mine.norms:Norm")
    (package / "mine" / "unused.py").write_text("x = 1\n")
    assert named(layer_norm_type="mine.norms:Norm") == before
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("mine", "beside.py"):
        (package / name).rename(moved / name)
    monkeypatch.syspath_prepend(str(moved))
    assert named(layer_norm_type="mine.norms:Norm") == before


def test_a_namespace_package_and_every_section_are_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loose" / "deep").mkdir(parents=True)
    (tmp_path / "loose" / "deep" / "ideas.py").write_text(FORBIDDEN)
    path = "loose.deep.ideas:Idea"
    sections = ("optim", "schedule", "clip", "spikes")
    config = {"model": {"init_fn": path}, **{s: {"name": path} for s in sections}}
    found = sources(config)
    assert set(found) == {"model.init_fn", *(f"{s}.name" for s in sections)}
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("path", ["nowhere.at_all:X", "ablate.train.respond:Observe", "os:path"])
def test_what_is_not_there_or_is_ours_has_no_digest(path: str) -> None:
    assert sources({"spikes": {"name": path}}) == {}
