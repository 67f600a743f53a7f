"""What a step does, and what it must not do."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch

from ablate.config.schema import DataConfig, TrialConfig
from ablate.data import IGNORED, open_data
from ablate.errors import ConfigError, DivergedError
from ablate.rundir import TrialDir
from ablate.train import loop, run_trial
from ablate.train import trial as trial_module
from ablate.train.batch import to_tensors
from ablate.train.checkpoint import load_model_state
from ablate.train.clip import gradient_norms
from ablate.train.precision import Precision
from ablate.train.record import Record
from ablate.train.run import Run, assemble, seed_step

CPU = torch.device("cpu")


def run(trial: TrialDir, config: dict[str, Any], **arguments):
    trial.create(config, config["train"]["steps"])
    return run_trial(trial.acquire(), config, **arguments)


def rows(trial: TrialDir) -> list[dict[str, Any]]:
    return list(trial.stitched())


def events(trial: TrialDir, kind: str) -> list[dict[str, Any]]:
    return [e for e in trial.stitched("events.jsonl") if e["kind"] == kind]


def weights(trial: TrialDir, step: int) -> dict[str, torch.Tensor]:
    return load_model_state(trial.newest_attempt().checkpoint_path(step))


# ---- what is written


def test_a_row_a_step_with_every_key(config, trial):
    seen: list[dict[str, Any]] = []
    result = run(trial, config(train={"validate_every": 5}), on_row=seen.append)
    assert result.status == "done"
    assert rows(trial) == seen
    assert [r["step"] for r in seen] == list(range(1, 13))
    always = {
        "step",
        "tokens",
        "train/loss",
        "train/grad_norm",
        "train/update_norm",
        "lr",
        "tokens_per_second",
    }
    for row in seen:
        assert always <= row.keys()
        assert row["tokens"] == row["step"] * 4 * 32
        assert ("val/loss" in row) == (row["step"] in (5, 10, 12))
        assert all(math.isfinite(v) for v in row.values())
    assert [e["step"] for e in events(trial, "validation")] == [5, 10, 12]
    assert [e["step"] for e in events(trial, "checkpoint")] == [12]
    assert len(events(trial, "start")) == 1


def test_the_summary_says_what_the_rows_say(config, trial):
    settings = config(train={"steps": 20, "measure_every": 7})
    summary = run(trial, settings).summary
    record = rows(trial)
    for key in ("val/loss", "val/bpb", "val/perplexity"):
        assert summary[key] == record[-1][key]
    assert summary["train/loss"] == pytest.approx(np.mean([r["train/loss"] for r in record[-2:]]))
    assert (summary["steps"], summary["tokens"]) == (20, 20 * 4 * 32)
    assert summary["tokens_per_second"] * summary["seconds"] == pytest.approx(summary["tokens"])
    assert 2**20 < summary["peak_memory"] < 2**36, "bytes of the process"
    assert summary["parameters"] == sum(w.numel() for w in weights(trial, 20).values())
    peaks = [v for r in record for k, v in r.items() if k.startswith("model/attention_logit_max/")]
    assert len(peaks) == 2 * 2
    assert summary["model/attention_logit_max"] == max(peaks)


def test_the_loss_falls(config, trial):
    run(trial, config(train={"steps": 60}))
    losses = [r["train/loss"] for r in rows(trial)]
    assert losses[0] == pytest.approx(math.log(257), abs=0.5)
    assert np.mean(losses[-5:]) < losses[0] - 2


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_update_norm_is_the_distance_between_two_steps_weights(name, config, trial):
    settings = config(
        train={"steps": 4, "checkpoint_every": 1, "keep_checkpoints": -1}, optim={"name": name}
    )
    run(trial, settings)
    for row in rows(trial)[1:]:
        after, before = weights(trial, row["step"]), weights(trial, row["step"] - 1)
        moved = math.sqrt(sum(float((after[k] - before[k]).double().square().sum()) for k in after))
        assert row["train/update_norm"] == pytest.approx(moved, rel=1e-4)


def test_the_logged_gradient_norm_is_the_one_before_clipping(config, tmp_path):
    norms = []
    for limit in (1e-4, 1e4):
        one = TrialDir(tmp_path / str(limit))
        run(one, config(train={"steps": 1}, clip={"max_norm": limit}))
        norms.append(rows(one)[0]["train/grad_norm"])
    assert norms[0] == norms[1] > 1e-2


def test_learning_rate_of_the_first_step_is_the_schedule_at_one(config, trial):
    run(trial, config(train={"steps": 10}, schedule={"name": "wsd", "warmup": 4, "decay": 2}))
    assert [r["lr"] for r in rows(trial)] == pytest.approx(
        [1e-2 * x for x in (0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 0.5, 0)]
    )


# ---- one batch, however it is cut


def gradients(run: Run, step: int = 1) -> tuple[float, list[torch.Tensor]]:
    batch = to_tensors(run.next_batch(step), CPU)
    loss, _ = loop.accumulate_gradients(run, batch).tolist()
    found = [g.clone() for g in run.gradients()]
    run.optimiser.zero_grad(set_to_none=True)
    return loss, found


def test_accumulated_gradients_equal_those_of_the_whole_batch(config, monkeypatch):
    """Also where the micro-batches have unequal numbers of labels."""
    next_batch = Run.next_batch

    def uneven(self: Run, step: int):
        batch = next_batch(self, step)
        batch.labels[0, 3:] = IGNORED
        batch.labels[3, :] = IGNORED
        return batch

    monkeypatch.setattr(Run, "next_batch", uneven)
    found = []
    for micro in (None, 2, 1):
        settings = config(
            train={"micro_batch_size": micro},
            model={"residual_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0},
            loss={"z_loss": 1e-3},
        )
        found.append(gradients(assemble(TrialConfig.from_mapping(settings), CPU)))
    for loss, parts in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        torch.testing.assert_close(parts, found[0][1], rtol=1e-4, atol=1e-7)


def test_the_loss_is_the_mean_over_real_labels(config):
    ready = assemble(TrialConfig.from_mapping(config(model={"residual_dropout": 0.0})), CPU)
    ready.model.eval()
    batch = ready.next_batch(1)
    loss, _ = gradients(ready)
    logits = ready.model(torch.from_numpy(batch.input_ids)).logits[:, :-1].double()
    exact = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten()
    )
    assert loss == pytest.approx(exact.item(), rel=1e-5)


def test_repetitive_rows_lose_their_labels_when_asked(config, tmp_path):
    files = {name: tmp_path / f"{name}.txt" for name in ("train", "held_out")}
    for file in files.values():
        file.write_text("ab" * 4000)
    data = {"path": str(files["train"]), "validation_path": str(files["held_out"])}
    model = {"max_sequence_length": 128}
    for on in (False, True):
        settings = config(train={"filter_repetitions": on}, model=model, data=data)
        labels = assemble(TrialConfig.from_mapping(settings), CPU).next_batch(1).labels
        assert (labels == IGNORED).all() == on


# ---- validation


def test_validation_is_exact_and_does_not_depend_on_how_it_is_cut(config, tmp_path):
    settings = config(train={"validation_tokens": None})
    data = open_data(DataConfig(**settings["data"]))
    labels = data.held_out.read(1, len(data.held_out))
    values = []
    for micro in (None, 2, 1):
        one = TrialDir(tmp_path / str(micro))
        run(one, config(train={"steps": 1, "validation_tokens": None, "micro_batch_size": micro}))
        values.append(rows(one)[-1])
    first = values[0]
    assert first["val/perplexity"] == pytest.approx(math.exp(first["val/loss"]))
    bits = first["val/loss"] * len(labels) / math.log(2)
    assert first["val/bpb"] == pytest.approx(bits / np.count_nonzero(labels != 256), rel=1e-9)
    for other in values[1:]:
        assert other["val/loss"] == pytest.approx(first["val/loss"], rel=1e-3)


def test_validating_and_measuring_leave_the_curve_alone(config, tmp_path):
    curves = []
    for every in (0, 2):
        one = TrialDir(tmp_path / str(every))
        run(one, config(train={"validate_every": every, "measure_every": every}))
        curves.append([(r["train/loss"], r["train/grad_norm"]) for r in rows(one)])
    assert curves[0] == curves[1]


def test_measurements_cover_layers_weights_and_logits(config, trial):
    run(trial, config(train={"measure_every": 6}))
    measured = rows(trial)[5]
    for layer in (0, 1):
        for what in ("attention_logit_max", "activation_rms", "weight_norm"):
            assert measured[f"model/{what}/{layer}"] > 0
    assert measured["model/logit_std"] > 0
    assert "model/logit_std" not in rows(trial)[4]
    state = weights(trial, 12)
    total = math.sqrt(sum(float(w.double().square().sum()) for w in state.values()))
    assert rows(trial)[11]["model/weight_norm"] == pytest.approx(total, rel=1e-5)


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
        loss, calls = loop.language_loss, [0]

        def poisoned(*arguments):
            calls[0] += 1
            return loss(*arguments) * (math.nan if calls[0] == 5 else 1.0)

        monkeypatch.setattr(loop, "language_loss", poisoned)

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


# ---- the process around it


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
    """The row, the seed and the rate, in CPU time."""
    trial.create({}, 1)
    ready, record = assemble(TrialConfig.from_mapping(config()), CPU), Record(trial.acquire())
    row = dict.fromkeys(["step", "tokens", "train/loss", "train/grad_norm", "lr", "a", "b"], 1 / 3)

    def work() -> None:
        seed_step(0, 1, CPU)
        ready.set_rate(7)
        record.row(row)

    best = math.inf
    for _ in range(5):
        began = time.process_time()
        for _ in range(200):
            work()
        best = min(best, (time.process_time() - began) / 200)
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
