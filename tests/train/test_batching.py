"""Training on documents, however they lie in the batch, is training on the documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablate.config.schema import TrialConfig
from ablate.data import IGNORED
from ablate.errors import ConfigError
from ablate.rundir import State, TrialDir
from ablate.train import run_trial
from ablate.train.batch import to_tensors
from ablate.train.loop import accumulate_gradients
from ablate.train.run import Run, assemble

NAMES = ["padded", "packed", "dynamic"]
ROPE = {"rope": True, "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}


def built(config: Any, name: str, **batching: Any) -> Run:
    settings = config(model=ROPE, batching={"name": name, **batching})
    return assemble(TrialConfig.from_mapping(settings), torch.device("cpu"))


def gradients(run: Run, batch: Any) -> tuple[float, dict[str, torch.Tensor]]:
    run.model.zero_grad()
    run.model.train()
    loss = accumulate_gradients(run, to_tensors(batch, run.device))[0].item()
    found = {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}
    return loss, found


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_documents_is_the_plain_rows_with_document_masks(
    config: Any, name: str, step: int
) -> None:
    """The same documents, one after the other in one row with a mask, by the plain path."""
    run = built(config, name, cap=None)
    batch = run.next_batch(step)
    pieces = []
    for row, labels in zip(batch.input_ids, batch.labels, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], labels != IGNORED, [0]])))
        pieces += [row[a : b + 1] for a, b in edges.reshape(-1, 2)]
    ids = np.concatenate(pieces)
    lengths = np.array([[len(p) for p in pieces]], dtype=np.int32)
    labels = ids[1:].copy()
    labels[np.cumsum(lengths)[:-1] - 1] = IGNORED
    plain = type(batch)(
        input_ids=ids[None], labels=labels[None], doc_lens=lengths,
        max_doc_lens=[int(lengths.max())], indices=np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    (loss, found), (wanted, expected) = gradients(run, batch), gradients(run, plain)
    assert abs(loss - wanted) <= 1e-6 * wanted
    for parameter, value in expected.items():
        error = (found[parameter] - value).abs().max() / value.abs().max()
        assert error <= 1e-6, parameter


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_and_resumed_it_is_the_same_curve(
    config: Any, name: str, tmp_path: Path
) -> None:
    settings = config(batching={"name": name}, train={"checkpoint_every": 1})
    steps = settings["train"]["steps"]
    rows = []
    for kind in ("undisturbed", "interrupted"):
        trial = TrialDir(tmp_path / kind)
        trial.create(settings, steps)
        if kind == "interrupted":
            attempt = trial.acquire()
            run_trial(attempt, settings, should_stop=iter([None, "preempted"]).__next__)
            attempt.release(State(status="preempted", step=2, steps=steps))
        assert run_trial(trial.acquire(), settings).status == "done"
        rows.append(
            [
                {k: v for k, v in r.items() if not ("per_second" in k or k.startswith("time/"))}
                for r in trial.stitched()
            ]
        )
    assert rows[0] == rows[1]
    assert all(0 <= r["batching/padding"] < 1 for r in rows[0])


def test_the_summary_says_how_full_batches_were_and_what_was_cut(
    config: Any, tmp_path: Path
) -> None:
    found = {}
    for name in ("padded", "dynamic"):
        settings = config(batching={"name": name})
        trial = TrialDir(tmp_path / name)
        trial.create(settings, settings["train"]["steps"])
        found[name] = run_trial(trial.acquire(), settings).summary
    assert 0 <= found["padded"]["batching/padding"] < 1
    assert 0 < found["dynamic"]["batching/truncated"] < 1
    assert all(s["batching/real_tokens_per_second"] > 0 for s in found.values())
    positions = found["dynamic"]["tokens"]
    assert found["dynamic"]["batching/real_tokens"] <= positions


REFUSED = {
    "data.document_masking": {"batching": {"name": "padded"}, "data": {"document_masking": True}},
    "train.filter_repetitions": {
        "batching": {"name": "packed"},
        "train": {"filter_repetitions": True},
    },
    "batching.name": {"batching": {"name": "dynamic"}, "parallel": {"name": "ddp"}},
    "batching.cap": {"batching": {"name": "dynamic", "cap": 0.0}},
    "batching.bucket": {"batching": {"name": "dynamic", "bucket": 1.0}},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_makes_no_sense_is_refused(config: Any, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TrialConfig.from_mapping(config(**REFUSED[field]))
    assert raised.value.field == field


@pytest.mark.parametrize("name", ["concat", *NAMES])
def test_utilisation_is_said_only_where_all_of_the_budget_is_computed(
    config: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end with their documents are shorter than what is counted."""
    monkeypatch.setattr("ablate.train.trial.peak_flops", lambda *_: 1e15)
    settings = config(model=ROPE, batching={"name": name}, train={"steps": 1})
    trial = TrialDir(tmp_path / "trial")
    trial.create(settings, 1)
    mfu = run_trial(trial.acquire(), settings).summary["mfu"]
    assert (mfu is None) == (name in ("padded", "dynamic"))
