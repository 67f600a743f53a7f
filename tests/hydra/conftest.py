from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from user_code import small_trial

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    warm_launches: None,
) -> Callable[..., tuple[int, str, str]]:
    """`ablate train -m WORDS` in this process and an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABLATE_DEBUG", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["train", "-m", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """The same as a process of its own."""

    def run(*words: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, sys.path)])
        return subprocess.Popen(
            [sys.executable, "-m", "ablate", "train", "-m", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """See `user_code.small_trial`."""
    return small_trial(tmp_path, steps=4)
