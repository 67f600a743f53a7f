from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli import main

sys.path.insert(0, str(Path(__file__).parent))
from user_code import small_trial

ROOT = Path(__file__).parents[2]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    warm_launches: None,
) -> Call:
    """`ablate WORDS` in this process and an empty folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABLATE_DEBUG", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def environment() -> dict[str, str]:
    """For `python -m ablate` in a process of its own."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """See `user_code.small_trial`."""
    return small_trial(tmp_path, steps=6)
