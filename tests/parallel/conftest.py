"""Tiny trials on text of seeded random words, run by one, two or four processes."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ablate.plan import resolve
from ablate.rundir import TrialDir

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from crew import STEPS, Config, Crew, Rows, make_trial, said
from tiny import MODEL, section_data, with_sections, write_text

DROPOUT = ("attention_dropout", "residual_dropout", "embedding_dropout")


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def config(text: Path) -> Callable[..., Config]:
    """A resolved configuration; keywords are sections."""
    base: Config = {
        "seed": 3,
        "model": {**MODEL, **dict.fromkeys(DROPOUT, 0.0)},
        "data": section_data(text),
        "train": {
            "steps": STEPS, "batch_size": 8, "validation_tokens": 300, "checkpoint_every": 0,
            "measure_every": 10, "validate_every": 10, "device": "cpu",
        },
        "optim": {"lr": 1e-2},
        "parallel": {"name": "ddp", "timeout": 20},
    }  # fmt: skip

    return lambda **sections: resolve(with_sections(base, sections))


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    started = Crew()
    yield started
    started.close()


@pytest.fixture
def trial(tmp_path: Path) -> Callable[[Config], TrialDir]:
    return functools.partial(make_trial, tmp_path)


@pytest.fixture(scope="session")
def alone(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], Rows]:
    """The rows of a configuration trained by one process, once."""
    known: dict[str, Rows] = {}

    def rows(config: Config) -> Rows:
        config = {**config, "parallel": {"name": "none"}}
        key = json.dumps(config, sort_keys=True)
        if key not in known:
            trial = make_trial(tmp_path_factory.mktemp("alone"), config)
            assert crew.run(trial, 1) == [0], said(trial)
            known[key] = list(trial.stitched())
        return known[key]

    return rows
