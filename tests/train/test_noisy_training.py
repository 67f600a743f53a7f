"""Noise in norms while a trial trains: it continues bit for bit, and each knob does something."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model.noisy import NoisyNorm
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.batch import to_tensors
from ablate.train.loop import accumulate_gradients
from ablate.train.run import assemble
from ablate.train.validation import validate
from tests.train.tiny import without_clock

CPU = torch.device("cpu")
STILL = dict.fromkeys(("attention_dropout", "residual_dropout", "embedding_dropout"), 0.0)
NOISY = {"norm_noise": 0.1, "norm_noise_schedule": "linear", "norm_grad_clip": 1.0}


def trained(folder, settings, stop: int | None = None) -> list[dict[str, Any]]:
    trial = TrialDir(folder)
    trial.create(settings, settings["train"]["steps"])
    if stop is not None:
        left = iter([None] * (stop - 1) + ["stop"])
        assert run_trial(trial.acquire(), settings, should_stop=lambda: next(left)).step == stop
        trial.newest_attempt().release(trial.state().replace(status="preempted"))
    assert run_trial(trial.acquire(), settings).status == "done"
    return [without_clock(r) for r in trial.stitched()]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp16_protected"])
def test_stopped_and_resumed_it_is_the_undisturbed_trial_bit_for_bit(precision, config, tmp_path):
    settings = config(
        model=NOISY, train={"steps": 9, "micro_batch_size": 2}, precision={"name": precision}
    )
    whole = trained(tmp_path / "whole", settings)
    assert trained(tmp_path / "stopped", settings, stop=4) == whole
    plain = trained(tmp_path / "plain", config(train={"steps": 9, "micro_batch_size": 2}))
    assert [r["train/loss"] for r in plain] != [r["train/loss"] for r in whole]


def test_micro_batches_draw_noise_of_their_own_and_validation_draws_none(config) -> None:
    settings = config(model={"norm_noise": 0.5}, train={"micro_batch_size": 2})
    run = assemble(TrialConfig.from_mapping(settings), CPU)
    seen: list[tuple[int, bytes]] = []
    norm = run.model.get_submodule("transformer.ln_f")
    assert isinstance(norm, NoisyNorm)
    draw = norm._draw

    def keep(like: torch.Tensor) -> torch.Tensor:
        noise = draw(like)
        seen.append((norm.moment.micro_batch, noise.numpy().tobytes()))
        return noise

    norm._draw = keep  # type: ignore[method-assign]
    for _ in range(2):
        run.begin_step(1)
        accumulate_gradients(run, to_tensors(run.next_batch(1), CPU))
    assert [number for number, _ in seen] == [0, 1, 0, 1]
    assert seen[:2] == seen[2:]
    assert seen[0][1] != seen[1][1]
    assert validate(run) == validate(run)
    assert len(seen) == 4


def test_the_clamp_bites_alike_however_the_batch_is_cut_and_the_loss_is_scaled(config) -> None:
    found = []
    for cut, precision, limit in (
        (None, "fp32", 1e-2),
        (1, "fp32", 1e-2),
        (None, "fp16_protected", 1e-2),
        (None, "fp32", None),
    ):
        settings = config(
            model={"norm_grad_clip": limit, **STILL}, train={"micro_batch_size": cut},
            precision={"name": precision},
        )  # fmt: skip
        run = assemble(TrialConfig.from_mapping(settings), CPU)
        run.begin_step(1)
        accumulate_gradients(run, to_tensors(run.next_batch(1), CPU))
        run.precision.unscale(run.optimiser)
        found.append(torch.cat([g.flatten() for g in run.gradients()]))
    scale = found[0].abs().max()
    assert float((found[1] - found[0]).abs().max() / scale) < 1e-5
    assert float((found[2] - found[0]).abs().max() / scale) < 2e-2
    assert float((found[3] - found[0]).abs().max() / scale) > 0.1


@pytest.mark.parametrize("optimiser", ["adamw", "lion", "muon"])
def test_scale_and_shift_learn_at_rates_of_their_own(optimiser, config, tmp_path) -> None:
    rates = {"name": optimiser, "norm_scale_lr": 0.25, "norm_shift_lr": 0.0}
    run = assemble(TrialConfig.from_mapping(config(optim=rates)), CPU)
    rate = run.set_rate(12)
    names = {id(p): n for n, p in run.model.named_parameters()}
    found = {names[id(p)]: g["lr"] for g in run.optimiser.param_groups for p in g["params"]}
    assert found["transformer.ln_f.weight"] == pytest.approx(rate / 4)
    assert found["transformer.blocks.0.attn_norm.bias"] == 0
    assert found["transformer.blocks.0.ff_out.bias"] == rate == found["transformer.wte.weight"]
    trial, settings = TrialDir(tmp_path / "trial"), config(optim=rates)
    trial.create(settings, 12)
    run_trial(trial.acquire(), settings)
    saved = torch.load(
        trial.newest_attempt().checkpoint_path(12) / "model.pt", weights_only=True
    )  # fmt: skip
    shifts = [v for n, v in saved.items() if n.endswith(("_norm.bias", "ln_f.bias"))]
    assert len(shifts) == 5
    assert all(not s.any() for s in shifts)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"model": {"norm_noise": 0.1}, "train": {"compile": True}}, "model.norm_noise"),
        ({"optim": {"norm_scale_lr": -1.0}}, "optim.norm_scale_lr"),
        ({"optim": {"norm_shift_lr": float("inf")}}, "optim.norm_shift_lr"),
    ],
)
def test_nonsense_is_refused_by_name(sections, named) -> None:
    with pytest.raises(ConfigError, match=named):
        TrialConfig.from_mapping(sections)
