"""Every option that shapes the training, found by listing conf/, trains, and no two alike."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest

from ablate.config.compose import Composer
from ablate.data.corpora import CORPORA
from ablate.data.tokenizers import ByteTokenizer, JsonTokenizer, train_bpe
from ablate.model.config import ModelConfig
from ablate.plan import resolve
from ablate.rundir import TrialDir
from ablate.train import run_trial
from tests.contract.documents import write_documents

COMPOSER = Composer()
TRAINING = {"batching", "loss", "optim", "schedule", "precision", "clip"}
GROUPS = [
    g
    for g in COMPOSER.groups()
    if g != "sweep"
    and all(
        k.split(".")[0] in TRAINING
        for o in COMPOSER.choices(g)
        for k in COMPOSER.touched(f"{g}={o}")
    )
]
OPTIONS = [(g, o) for g in GROUPS for o in COMPOSER.choices(g)]
STEPS = 40
TINY = [
    "size=tiny", "model.d_model=16", "model.n_heads=2", "model.max_sequence_length=16",
    "train.batch_size=4", f"train.steps={STEPS}", "train.checkpoint_every=0",
    "train.validation_tokens=100", "train.device=cpu",
]  # fmt: skip
BITING = {
    "clip": ["clip.max_norm=0.2", "clip.max_ratio=1.01", "clip.max_value=1e-3"],
    "unembedding=chunked": ["loss.chunk=16"],
    "precision=fp16_naive": ["model.init_std=0.1"],
    "schedule=wsds": [f"schedule.periods=[{STEPS // 2},{STEPS}]"],
}
"""Limits low enough, chunks small enough, and more than one period, so that the options show; and
weights large enough for norms that are spelled out in float16 (see `ablate.model.protection`)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of seeded random words."""
    folder = tmp_path_factory.mktemp("contract")
    write_documents(folder, 30, 100, 100)
    return folder


@functools.cache
def trained(folder: Path, group: str, option: str) -> list[dict[str, Any]]:
    """The record of a short run, without the clock."""
    data = [f"data.path={folder}/text", f"data.cache_dir={folder}/cache"]
    extra = [*BITING.get(group, []), *BITING.get(f"{group}={option}", [])]
    config = resolve(COMPOSER.compose([*TINY, *data, f"{group}={option}", *extra]))
    trial = TrialDir(folder / f"{group}-{option}")
    trial.create(config, STEPS)
    assert run_trial(trial.acquire(), config).status == "done"
    return [
        {k: v for k, v in row.items() if not ("per_second" in k or k.startswith("time/"))}
        for row in trial.stitched()
    ]


def test_the_groups_are_found() -> None:
    assert set(GROUPS) == TRAINING | {"unembedding"}


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=map("=".join, OPTIONS))
def test_it_trains_to_the_end(folder: Path, group: str, option: str) -> None:
    rows = trained(folder, group, option)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(math.isfinite(row["train/loss"]) and row["lr"] >= 0 for row in rows)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]


@pytest.mark.parametrize("group", GROUPS)
def test_no_two_options_train_alike(folder: Path, group: str) -> None:
    records = {o: trained(folder, group, o) for o in COMPOSER.choices(group)}
    names = list(records)
    alike = [(a, b) for i, a in enumerate(names) for b in names[:i] if records[a] == records[b]]
    assert alike == []


@pytest.mark.parametrize("option", COMPOSER.choices("data"))
def test_the_vocabulary_of_the_data_is_the_models(option: str) -> None:
    tree = COMPOSER.compose([f"data={option}"])
    data, model = tree["data"], ModelConfig.from_mapping(tree["model"])
    if data["corpus"] is None:
        assert model.vocab_size == 50257, "tokens of the user's own go with the preset's vocabulary"
        return
    assert data["corpus"] in CORPORA
    tokenizer: Any = {"gpt2": (50257, 50256)}.get(data["tokenizer"])
    if data["tokenizer"] == "bytes":
        tokenizer = (ByteTokenizer.vocab_size, ByteTokenizer.eos_token_id)
    if data["tokenizer"] == "bpe":
        small = JsonTokenizer("bpe", train_bpe(["in the beginning"], 300))
        tokenizer = (data["tokenizer_vocab_size"], small.eos_token_id)
    assert (model.vocab_size, model.eos_token_id) == tokenizer
    assert model.embedding_rows == model.vocab_size
