"""The process that trains: its settings, its bits, its time, and what it refuses to begin."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.rundir import TrialDir
from ablate.train.device import seed_step
from ablate.train.record import Record
from ablate.train.run import assemble
from ablate.train.watch import Watch
from tests.train.ran import CPU, events, rows, run


def test_settings_of_the_process_are_put_back(config, trial):
    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    seen = []
    run(
        trial,
        config(train={"threads": 1, "steps": 2}),
        on_row=lambda row: seen.append(
            (torch.get_num_threads(), torch.get_deterministic_debug_mode())
        ),
    )
    assert set(seen) == {(1, 1)}
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == before


@pytest.mark.parametrize("threads", [1, 2])
def test_pain_33_the_same_trial_twice_gives_the_same_bits(threads, config, tmp_path):
    curves = []
    for name in ("a", "b"):
        one = TrialDir(tmp_path / name)
        run(one, config(train={"threads": threads, "steps": 3}))
        curves.append([(r["train/loss"], r["train/update_norm"]) for r in rows(one)])
    assert curves[0] == curves[1]


def test_without_a_compiler_compilation_is_off_and_says_so(config, trial, monkeypatch, caplog):
    monkeypatch.setattr("shutil.which", lambda name: None)
    run(trial, config(train={"compile": True, "steps": 2}))
    assert "train.compile=true is ignored" in caplog.text
    assert events(trial, "start")[0]["compiled"] is False


def test_what_the_loop_adds_to_a_step_by_itself_is_under_100_microseconds(config, trial):
    """The seed, the rate, the detector and the row, in CPU time; what is shown costs a tenth of it.

    Cold caches make it dearer between real steps: `python -m benchmarks.spike_loop`.
    """
    trial.create({}, 1)
    ready, record = assemble(TrialConfig.from_mapping(config()), CPU), Record(trial.acquire())
    noise = np.random.default_rng(0).normal(3, 0.05, 1000).tolist()
    watch = Watch(ready, record)
    row = dict.fromkeys(["train/grad_norm", "train/update_norm", "lr", "tokens_per_second"], 1 / 3)

    def work(step: int) -> None:
        seed_step(0, step, CPU)
        ready.set_rate(7)
        watch.see({"step": step, "tokens": step, "train/loss": noise[step], **row})

    best = math.inf
    for block in range(5):
        began = time.process_time()
        for i in range(200):
            work(200 * block + i)
        best = min(best, (time.process_time() - began) / 200)
    watch.flush()
    record.close()
    assert best < 100e-6


def test_dropout_is_seeded_by_seed_and_step():
    draws = []
    for seed, step in [(0, 1), (0, 2), (1, 1), (0, 1)]:
        seed_step(seed, step, CPU)
        draws.append(torch.rand(3).tolist())
    assert draws[0] == draws[3]
    assert len({tuple(d) for d in draws}) == 3


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"train": {"device": "cuda:99"}}, "train.device"),
        ({"train": {"sequence_length": 64}}, "train.sequence_length"),
        ({"schedule": {"name": "cosin"}}, "schedule.name"),
        ({"optim": {"name": "nowhere:Adam"}}, "optim.name"),
        ({"train": {"batch_size": 10**12}}, "train.batch_size"),
        ({"train": {"batch_size": 10**9}}, "train.batch_size"),
        ({"train": {"batch_size": 10**7, "micro_batch_size": 5 * 10**6}}, "train.micro_batch_size"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_first_step(sections, field, config, trial):
    with pytest.raises(ConfigError) as caught:
        run(trial, config(**sections))
    assert caught.value.field == field
    assert rows(trial) == []


def test_document_masking_reaches_the_model(config, tmp_path):
    losses = []
    for on in (False, True):
        one = TrialDir(tmp_path / str(on))
        run(one, config(data={"document_masking": on}, train={"steps": 30}))
        losses.append([r["train/loss"] for r in rows(one)])
    assert losses[0] != losses[1]


def test_activation_checkpointing_leaves_the_curve_alone(config, tmp_path):
    """Dropout included: the recomputed forward pass draws the same numbers."""
    curves = []
    for strategy in (None, "whole_layer"):
        one = TrialDir(tmp_path / str(strategy))
        run(one, config(train={"activation_checkpointing": strategy, "steps": 4}))
        curves.append([r["train/loss"] for r in rows(one)])
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)


@pytest.mark.parametrize(
    ("section", "key", "field"),
    [
        ("model", "layer_norm_type", "model.layer_norm_type"),
        ("model", "activation_type", "model.activation_type"),
        ("optim", "name", "optim.name"),
        ("schedule", "name", "schedule.name"),
        ("clip", "name", "clip.name"),
        ("spikes", "name", "spikes.name"),
    ],
)
def test_what_a_users_own_class_raises_when_it_is_built_is_told_in_one_paragraph(
    section, key, field, config, trial, tmp_path, monkeypatch
):
    (tmp_path / "own_idea.py").write_text(
        "class Raises:\n    def __init__(self, *_, **__):\n        raise KeyError('no table')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run(trial, config(**{section: {key: "own_idea:Raises"}}))
    assert caught.value.field == field
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in ("KeyError", "no table", "own_idea.py:3"))
    assert rows(trial) == []
