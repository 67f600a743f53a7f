"""What a trial records is what its weights compute, for every option that is found in conf/.

The oracle is a model of its own, built anew for every checkpoint, with weights in float64 and
attention spelled out; batches and documents are cut by a few lines here. So whatever a run keeps
from step to step, and should not, shows in a validation, a measurement or a step after the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.launch.stitch import stitch
from ablate.train.loader import Loader
from ablate.train.long_context import measure_cache
from ablate.train.loop import train
from ablate.train.measure import measure
from ablate.train.record import Silence
from ablate.train.robustness import robustness
from ablate.train.run import copied
from ablate.train.validation import validate
from ablate.train.watch import Watch
from tests.contract.documents import write_documents
from tests.contract.trained import (
    CASES,
    EVERY,
    LENGTH,
    OF_CUDA,
    RANDOM,
    ROWS,
    STREAM,
    Trained,
    trained,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of seeded random words."""
    folder = tmp_path_factory.mktemp("recorded")
    write_documents(folder, 60, 3, 30)
    return folder


def document_lengths(ids: Tensor) -> dict[str, Any]:
    """Of the model's inputs, from where ends of documents (256) stand."""
    rows = []
    for row in ids.tolist():
        ends = [i + 1 for i, token in enumerate(row) if token == 256]
        cuts = sorted({0, *ends, len(row)})
        rows.append([b - a for a, b in itertools.pairwise(cuts)])
    longest = max(map(len, rows))
    return {"doc_lens": torch.tensor([r + [0] * (longest - len(r)) for r in rows])}


def expected_validation(done: Trained, step: int) -> dict[str, float]:
    """Windows that overlap by one token; the last one ends with the text, and is not padded."""
    text, model, nats = done.held_out, done.model(step), 0.0
    starts = range(0, len(text) - 1, LENGTH - 1)
    windows = [text[start : start + LENGTH] for start in starts]
    whole = [w for w in windows if len(w) == LENGTH]
    for rows in filter(None, (whole, windows[len(whole) :])):
        ids = torch.tensor(rows)
        masked = done.config["data"]["document_masking"]
        with torch.no_grad():
            logits = model(ids, **(document_lengths(ids) if masked else {})).logits[:, :-1]
        nats += F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum").item()
    loss, size = nats / (len(text) - 1), sum(token < 256 for token in text[1:])
    bits = nats / math.log(2) / size
    return {"val/loss": loss, "val/perplexity": math.exp(loss), "val/bpb": bits}


each_case = pytest.mark.parametrize("case", [case for case in CASES if case not in OF_CUDA])


@pytest.mark.parametrize("case", OF_CUDA)
def test_what_is_left_out_here_cannot_be_trained_here(folder: Path, case: str) -> None:
    with pytest.raises(ConfigError, match=r"CUDA only|no backward pass on a CPU"):
        trained(folder, case)


@each_case
def test_validations_are_those_of_the_weights_at_that_step(folder: Path, case: str) -> None:
    done = trained(folder, case)
    for step in done.looked_at:
        row = done.rows[step - 1]
        assert row["step"] == step
        for key, value in expected_validation(done, step).items():
            assert row[key] == pytest.approx(value, rel=done.close), (step, key)


@each_case
def test_a_fresh_process_measures_the_same_bits(folder: Path, case: str) -> None:
    """Of the weights alone: not of passes before, buffers, or the mode that the model was in."""
    done = trained(folder, case)
    for step in done.looked_at:
        row, run = done.rows[step - 1], done.restored(step)
        fresh = measure(run, done.batch(step)) | validate(run)
        if step == done.steps:
            fresh |= robustness(run, fresh["val/loss"])
        assert fresh == {k: v for k, v in row.items() if k in fresh}
        measured = {k for k in row if k.startswith(("val/", "model/", "robust/"))}
        assert measured == fresh.keys()


class Rows(Silence):
    """Keeps the rows."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        self.kept += rows


def unclocked(rows: Sequence[dict[str, Any]]) -> list[str]:
    """In words, so that NaN is NaN."""
    clock = "per_second", "time/"
    return [repr({k: v for k, v in row.items() if not any(c in k for c in clock)}) for row in rows]


@each_case
def test_from_a_checkpoint_and_after_a_rewind_the_steps_are_the_same(
    folder: Path, case: str
) -> None:
    """Bit for bit, in another object: what went before shows in nothing that an update changes."""
    done = trained(folder, case)
    run, begun = done.restored(EVERY), done.saved(EVERY).train
    state = run.capture()
    for _ in range(2):
        for part in ("detector", "response"):  # which a rewind leaves as they are
            getattr(run, part).load_state_dict(copied(begun[part]))
        rows = Rows()
        watch, loader = Watch(run, rows, patient=False), Loader(run, ahead=0)
        stop = [None] * (EVERY - 1) + ["enough"]
        train(run, EVERY, watch, loader, lambda _: None, iter(stop).__next__)
        assert unclocked(rows.kept) == unclocked(done.rows[EVERY : 2 * EVERY])
        run.put_back(state)


@each_case
def test_statistics_of_the_logits_are_those_of_the_weights(folder: Path, case: str) -> None:
    done = trained(folder, case)
    model, row = done.model(done.steps), done.rows[-1]
    batch = done.batch(done.steps)
    size = done.typed.train.micro_batch_size
    part = next(batch.split(size))
    with torch.no_grad():
        logits = model(**part.model_inputs).logits
    z = torch.logsumexp(logits, -1)
    entropy = z - (torch.softmax(logits, -1) * logits).sum(-1)
    expected = {
        "logit_max": logits.max(), "logit_min": logits.min(), "logit_mean": logits.mean(),
        "logit_std": logits.std(correction=0), "log_z": z.mean(),
        "log_z_rms": z.square().mean().sqrt(), "output_entropy": entropy.mean(),
        "weight_norm": sum(p.square().sum() for p in model.parameters()).sqrt(),  # type: ignore
    }  # fmt: skip
    for name, value in expected.items():
        near = pytest.approx(value.item(), rel=50 * done.close, abs=5 * done.close)
        assert row[f"model/{name}"] == near, name


@each_case
def test_a_step_is_the_gradient_of_its_batch(folder: Path, case: str) -> None:
    """Loss, gradient norm, and the update by AdamW's formula from the moments that were saved."""
    done = trained(folder, case)
    for step in done.looked_at:
        row, before, after = done.rows[step - 1], done.saved(step - 1), done.saved(step)
        assert row["tokens"] == step * ROWS * LENGTH
        assert before.model is not None
        assert after.model is not None
        moved = {k: after.model[k].double() - before.model[k].double() for k in after.model}
        update = math.sqrt(sum(float(v.square().sum()) for v in moved.values()))
        assert row["train/update_norm"] == pytest.approx(update, rel=max(done.close, 1e-5))
        if any(name in case for name in RANDOM):
            continue
        model = done.model(step - 1).train()
        batch = done.batch(step)
        logits = model(**batch.model_inputs).logits.flatten(0, 1)
        labels = batch.labels.flatten()
        count = int((labels != -100).sum())
        loss = F.cross_entropy(logits, labels, reduction="sum") / count
        z = torch.logsumexp(logits, -1)[labels != -100].square().sum() / count
        (loss + done.typed.loss.z_loss * z).backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        assert row["train/loss"] == pytest.approx(loss.item(), rel=done.close)
        if not row["train/update_norm"]:  # an overflow
            continue
        assert row["train/grad_norm"] == pytest.approx(norm, rel=20 * done.close)
        if done.typed.optim.name == "adamw" and done.close < 1e-5:
            share = clipping(done.typed, norm)
            if share is not None:
                moments = before.train["optimiser"]
                for name, expected in adamw(done.typed, moments, before.model, gradients,
                                            row["lr"], step, share).items():  # fmt: skip
                    # Keys' biases have no gradient but rounding, which is divided by itself.
                    known = expected.isfinite()
                    off = (after.model[name].double() - expected)[known].abs()
                    assert (off <= 1e-5 + 1e-4 * expected[known].abs()).all(), name


def clipping(config: TrialConfig, norm: float) -> float | None:
    """What gradients are multiplied by; None: not that simple."""
    if config.clip.name == "none":
        return 1.0
    return min(1.0, config.clip.max_norm / (norm + 1e-6)) if config.clip.name == "norm" else None


def adamw(
    config: TrialConfig,
    optimiser: dict[str, Any],
    weights: dict[str, Tensor],
    gradients: dict[str, Tensor],
    rate: float,
    step: int,
    share: float,
) -> dict[str, Tensor]:
    """Weights after the step (arXiv 1711.05101), in float64; OLMo's rule says which decay. Not a
    number where gradients are all but zero.
    """
    c, (beta1, beta2), after = config.optim, config.optim.betas, {}
    for group in optimiser["param_groups"]:
        for i, name in zip(group["params"], group["param_names"], strict=True):
            state, g = optimiser["state"][i], gradients[name].double() * share
            assert int(state["step"]) == step - 1
            m = beta1 * state["exp_avg"].double() + (1 - beta1) * g
            v = beta2 * state["exp_avg_sq"].double() + (1 - beta2) * g * g
            embeds = any(f".{part}." in name for part in ("wte", "wpe", "position"))
            decay = c.weight_decay if g.ndim == 2 and (not embeds or c.decay_embeddings) else 0.0
            if g.ndim < 2 and c.decay_norm_and_bias:
                decay = c.weight_decay
            w = weights[name].double() * (1 - rate * decay)
            root = (v / (1 - beta2**step)).sqrt()
            moved = w - rate * m / (1 - beta1**step) / (root + c.eps)
            after[name] = torch.where(root > 1e-6, moved, torch.nan)
    return after


@each_case
def test_the_summary_and_the_table_are_those_of_the_record(folder: Path, case: str) -> None:
    done = trained(folder, case)
    summary, last = done.summary, done.rows[-1]
    finals = {k: v for k, v in last.items() if k.startswith(("val/", "robust/"))}
    assert finals == {k: v for k, v in summary.items() if k.startswith(("val/", "robust/"))}
    assert (summary["steps"], summary["tokens"]) == (done.steps, done.steps * ROWS * LENGTH)
    weights = done.saved(done.steps).model
    assert weights is not None
    assert summary["parameters"] == sum(w.numel() for w in weights.values())
    stitch(done.trial)
    table = parquet.read_table(done.trial.metrics_path).to_pylist()
    rows = [{k: v for k, v in row.items() if v is not None} for row in table]
    assert [repr(sorted(r.items())) for r in rows] == [repr(sorted(r.items())) for r in done.rows]
    if done.typed.cache.name == "none":
        return
    run = done.restored(done.steps)
    ids = torch.tensor([run.data.held_out.read(0, STREAM).tolist()])
    with run.precision.reading():
        fresh = measure_cache(run.model, ids, done.typed.cache)
    assert fresh == {k: v for k, v in summary.items() if k.startswith("cache/")}
    with torch.no_grad():
        logits = done.model(done.steps)(ids).logits[0, :-1]
    perplexity = math.exp(F.cross_entropy(logits, ids[0, 1:]).item())
    assert fresh["cache/perplexity_full"] == pytest.approx(perplexity, rel=5 * done.close)
