"""Low precision, and losses and gradients that are no longer finite."""

from __future__ import annotations

import math

import pytest
import torch

from ablate.errors import DivergedError
from ablate.rundir import TrialDir
from ablate.train import loop
from ablate.train import trial as trial_module
from ablate.train.clip import gradient_norms
from ablate.train.loss import language_loss
from ablate.train.precision import Precision
from ablate.train.run import Run, assemble
from tests.train.ran import events, rows, run, weights

# ---- precision


@pytest.mark.parametrize("name", ["bf16", "fp16", "pure_bf16"])
def test_low_precision_is_really_used_on_a_cpu_and_learns(name, config, tmp_path):
    losses = []
    for precision in ("fp32", name):
        one = TrialDir(tmp_path / precision)
        run(one, config(precision={"name": precision}, train={"steps": 20}))
        losses.append([r["train/loss"] for r in rows(one)])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    expected = torch.bfloat16 if name == "pure_bf16" else torch.float32
    assert {w.dtype for w in weights(one, 20).values()} == {expected}


def poison_gradients(monkeypatch, steps: set[int] | None):
    """Makes the gradients infinite at `steps` (None: always), the loss staying finite."""
    seen = [0]

    def norms(grads: list[torch.Tensor]) -> torch.Tensor:
        seen[0] += 1
        if steps is None or seen[0] in steps:
            grads[0].fill_(math.inf)
        return gradient_norms(grads)

    monkeypatch.setattr(loop, "gradient_norms", norms)


def test_fp16_overflow_is_a_skipped_step_at_half_the_scale(config, trial, monkeypatch):
    original, calls = Precision.unscale, [0]

    def overflow(self, optimiser):
        calls[0] += 1
        if calls[0] in (3, 4):
            optimiser.param_groups[0]["params"][0].grad.fill_(math.inf)
        original(self, optimiser)

    monkeypatch.setattr(Precision, "unscale", overflow)
    settings = config(
        precision={"name": "fp16"}, train={"checkpoint_every": 1, "keep_checkpoints": -1}
    )
    assert run(trial, settings).status == "done"
    assert [(e["step"], e["scale"]) for e in events(trial, "overflow")] == [(3, 65536), (4, 32768)]
    record = rows(trial)
    assert [r["step"] for r in record if r["train/update_norm"] == 0] == [3, 4]
    assert math.isinf(record[2]["train/grad_norm"])
    assert all(torch.equal(a, weights(trial, 2)[k]) for k, a in weights(trial, 4).items())


def test_persistent_fp16_overflow_is_divergence(config, trial, monkeypatch):
    original = Precision.unscale

    def overflow(self, optimiser):
        optimiser.param_groups[0]["params"][0].grad.fill_(math.inf)
        original(self, optimiser)

    monkeypatch.setattr(Precision, "unscale", overflow)
    with pytest.raises(DivergedError) as caught:
        run(trial, config(precision={"name": "fp16"}, train={"steps": 100}))
    assert 20 < caught.value.step < 40


# ---- divergence


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("name", ["fp32", "pure_bf16"])
def test_divergence_names_the_step_and_applies_no_update(what, name, config, trial, monkeypatch):
    kept: list[Run] = []

    def keep(*arguments):
        kept.append(assemble(*arguments))
        return kept[0]

    monkeypatch.setattr(trial_module, "assemble", keep)
    if what == "gradient":
        poison_gradients(monkeypatch, {5})
    else:
        loss, calls = language_loss, [0]

        def poisoned(*arguments):
            calls[0] += 1
            return loss(*arguments) * (math.nan if calls[0] == 5 else 1.0)

        monkeypatch.setattr("ablate.train.run.language_loss", poisoned)

    settings = config(
        precision={"name": name}, train={"checkpoint_every": 1, "keep_checkpoints": -1}
    )
    with pytest.raises(DivergedError) as caught:
        run(trial, settings)
    assert caught.value.step == 5
    record = rows(trial)
    assert [r["step"] for r in record] == [1, 2, 3, 4, 5]
    bad = record[4]["train/loss" if what == "loss" else "train/grad_norm"]
    assert not math.isfinite(bad)
    assert [e["step"] for e in events(trial, "diverged")] == [5]
    saved = weights(trial, 4)
    assert all(torch.equal(w, saved[k]) for k, w in kept[0].model.state_dict().items())


def test_an_absurd_learning_rate_diverges_by_itself(config, trial):
    with pytest.raises(DivergedError):
        run(trial, config(optim={"lr": 1e30}, train={"steps": 50}, clip={"name": "none"}))


def test_a_model_that_breaks_in_its_last_update_has_diverged_too(config, trial, monkeypatch):
    monkeypatch.setattr(
        loop, "validate", lambda run: {"val/loss": math.nan, "val/perplexity": math.nan}
    )
    with pytest.raises(DivergedError, match="validation loss nan"):
        run(trial, config())
    assert rows(trial)[-1]["step"] == 12
