from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    """Overrides of a trial that takes a second: two short texts, a very small model."""
    words = "".join(f"{i} times {i} is {i * i}, and so it goes on. " for i in range(400))
    (tmp_path / "train.txt").write_text(words)
    (tmp_path / "held_out.txt").write_text(words[::-1][:2000])
    return [
        f"data.path={tmp_path}/train.txt",
        f"data.validation_path={tmp_path}/held_out.txt",
        f"data.cache_dir={tmp_path}/cache",
        "size=tiny",
        "train.batch_size=2",
        "train.sequence_length=16",
        "train.steps=4",
    ]
