"""Tiny trials on text of seeded random words, run by one, two or four processes."""

from __future__ import annotations

import copy
import functools
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ablate.plan import resolve
from ablate.rundir import TrialDir

sys.path.insert(0, str(Path(__file__).parent))

from crew import STEPS, Config, Crew, Rows, make_trial, said

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
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    for i in range(40):
        words = draw.choices(WORDS.split(), k=draw.randint(30, 200))
        (folder / f"{i:02}.txt").write_text(" ".join(words))
    return folder


@pytest.fixture(scope="session")
def config(text: Path) -> Callable[..., Config]:
    """A resolved configuration; keywords are sections."""
    base: Config = {
        "seed": 3,
        "model": MODEL,
        "data": {
            "corpus": None,
            "path": str(text),
            "cache_dir": str(text.parent / "cache"),
            "validation_fraction": 0.2,
        },
        "train": {
            "steps": STEPS, "batch_size": 8, "validation_tokens": 300, "checkpoint_every": 0,
            "measure_every": 10, "validate_every": 10, "device": "cpu",
        },
        "optim": {"lr": 1e-2},
        "parallel": {"name": "ddp", "timeout": 20},
    }  # fmt: skip

    def build(**sections: Config) -> Config:
        made = copy.deepcopy(base)
        for name, values in sections.items():
            made[name] = {**made.get(name, {}), **values}
        return resolve(made)

    return build


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    started = Crew()
    yield started
    assert started.process.stdin is not None
    started.process.stdin.close()
    started.process.wait(timeout=60)


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
