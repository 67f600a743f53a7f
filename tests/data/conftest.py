"""A cache of its own for each test, and a small corpus of real-looking text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ablate.config.schema import DataConfig

WORDS = [
    "and",
    "the",
    "of",
    "unto",
    "king",
    "house",
    "said",
    "thou",
    "shalt",
    "naïve",
    "Größe",
    "λόγος",
    "神は",
    "🙂",
    "in",
    "it",
    "was",
]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ABLATE_CACHE", str(folder))
    return folder


@pytest.fixture
def texts() -> list[str]:
    rng = random.Random(7)
    return [
        f"Chapter {i}\n" + " ".join(rng.choices(WORDS, k=rng.randint(20, 200))) for i in range(120)
    ]


@pytest.fixture
def folder(tmp_path: Path, texts: list[str]) -> Path:
    """A folder of text files, a document each."""
    path = tmp_path / "texts"
    path.mkdir()
    for i, text in enumerate(texts):
        (path / f"{i:03d}.txt").write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def config(folder: Path) -> DataConfig:
    return DataConfig(path=str(folder), validation_fraction=0.1)
