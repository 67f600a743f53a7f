"""A tiny trial on real text, and a process that runs trials which get killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.rundir import TrialDir

sys.path.insert(0, str(Path(__file__).parent))

from tiny import MODEL, Server, section_data, with_sections, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of documents of seeded random words."""
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture
def config(text: Path) -> Callable[..., dict[str, Any]]:
    """A resolved configuration; keywords are sections."""
    base: dict[str, Any] = {
        "seed": 3,
        "model": MODEL,
        "data": section_data(text),
        "train": {"steps": 12, "batch_size": 4, "validation_tokens": 300, "checkpoint_every": 0},
        "optim": {"lr": 1e-2},
    }
    return lambda **sections: with_sections(base, sections)


class TrialProcess(Server):
    """Forks a real process for each attempt of a trial, from one that has torch loaded."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("forked_trials.py"))

    def attempt(self, path: Path, config: dict[str, Any], kill: str | None = None) -> int:
        """Exit code of one attempt; -9 where it was killed."""
        return self.ask(trial=str(path), config=config, kill=kill)

    def finish(self, path: Path, config: dict[str, Any]) -> dict[str, Any]:
        """Runs the trial to its end; its result."""
        assert self.attempt(path, config) == 0
        return json.loads((path / "result.json").read_text())


@pytest.fixture(scope="session")
def trials() -> Iterator[TrialProcess]:
    server = TrialProcess()
    yield server
    server.close()


@pytest.fixture
def trial(tmp_path: Path) -> TrialDir:
    return TrialDir(tmp_path / "trial")
