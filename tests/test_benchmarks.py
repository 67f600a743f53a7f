"""The benchmarks run by hand; that they can still be imported is asked in every run."""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys
from pathlib import Path

import pytest

import benchmarks

NAMES = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
def test_asked_for_help_it_begins_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are programs tell what they would do."""
    file = importlib.import_module(name).__file__ or ""
    if "__main__" not in Path(file).read_text():
        return
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out
