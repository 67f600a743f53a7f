"""A tiny trial on real text, and a process that runs trials which get killed."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.rundir import TrialDir

ROOT = Path(__file__).parents[2]
WORDS = "the of and to in that he shall unto for his a lord they be is him not them it"
MODEL = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "mlp_ratio": 2,
    "max_sequence_length": 32,
    "vocab_size": 257,
    "embedding_size": None,
    "eos_token_id": 256,
    "pad_token_id": 256,
}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of documents of seeded random words."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(
            " ".join(draw.choices(WORDS.split(), k=draw.randint(30, 200)))
        )
    return folder


@pytest.fixture
def config(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """A resolved configuration; keywords are sections."""
    base: dict[str, Any] = {
        "seed": 3,
        "model": MODEL,
        "data": {
            "corpus": None,
            "path": str(text),
            "cache_dir": str(text.parent / "cache"),
            "validation_fraction": 0.2,
        },
        "train": {"steps": 12, "batch_size": 4, "validation_tokens": 300, "checkpoint_every": 0},
        "optim": {"lr": 1e-2},
    }

    def build(**sections: dict[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(base)
        for name, values in sections.items():
            made[name] = {**made[name], **values} if name in made and name != "seed" else values
        return made

    return build


class TrialProcess:
    """Forks a real process for each attempt of a trial, from one that has torch loaded."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forked_trials.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )

    def attempt(self, path: Path, config: dict[str, Any], kill: str | None = None) -> int:
        """Exit code of one attempt; -9 where it was killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"trial": str(path), "config": config, "kill": kill}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def finish(self, path: Path, config: dict[str, Any]) -> dict[str, Any]:
        """Runs the trial to its end; its result."""
        assert self.attempt(path, config) == 0
        return json.loads((path / "result.json").read_text())


@pytest.fixture(scope="session")
def trials() -> Iterator[TrialProcess]:
    server = TrialProcess()
    yield server
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(timeout=30)


@pytest.fixture
def trial(tmp_path: Path) -> TrialDir:
    return TrialDir(tmp_path / "trial")
