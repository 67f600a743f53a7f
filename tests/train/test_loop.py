"""What a step does, and what it must not do."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ablate.config.schema import DataConfig, TrialConfig
from ablate.data import IGNORED, open_data
from ablate.rundir import TrialDir
from ablate.train import loop, watch
from ablate.train.batch import to_tensors
from ablate.train.peak_flops import peak_flops
from ablate.train.run import Run, assemble
from tests.train.ran import CPU, events, rows, run, weights


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
        "time/data",
        "time/forward",
        "time/backward",
        "time/optimiser",
        "time/record",
    }
    for row in seen:
        assert always <= row.keys()
        assert row["tokens"] == row["step"] * 4 * 32
        assert ("val/loss" in row) == (row["step"] in (5, 10, 12))
        assert all(math.isfinite(v) for v in row.values())
    assert [e["step"] for e in events(trial, "validation")] == [5, 10, 12]
    assert [e["step"] for e in events(trial, "checkpoint")] == [12]
    assert len(events(trial, "start")) == 1


def test_the_phases_of_a_step_are_its_time(config, trial):
    settings = config(train={"steps": 30, "micro_batch_size": 2, "validate_every": 10})
    summary = run(trial, settings).summary
    record = rows(trial)
    inside = ("data", "forward", "backward", "optimiser")
    for row in record:
        seconds = row["tokens"] / row["step"] / row["tokens_per_second"]
        parts = sum(row[f"time/{k}"] for k in inside)
        assert 0.5 * seconds < parts <= seconds + 1e-6, row["step"]
    for phase in (*inside, "record"):
        assert summary[f"time/{phase}"] == pytest.approx(
            sum(r[f"time/{phase}"] for r in record), abs=1e-5
        )
    assert summary["data_share"] == pytest.approx(summary["time/data"] / summary["seconds"], 0.01)
    # What a validation takes lies between two steps.
    assert record[10]["time/record"] > np.median([r["time/record"] for r in record])
    assert summary["flops"] == summary["flops_per_token"] * summary["tokens"]
    assert summary["mfu"] is None, "nobody knows what this CPU can do"


def test_known_gpus_have_a_peak():
    def peak(name, precision="bf16"):
        return peak_flops(torch.device("cuda"), precision, name)

    assert peak("NVIDIA H200") == peak("NVIDIA H100 80GB HBM3") == 989e12
    assert peak("NVIDIA H100 PCIe") == 756e12
    assert peak("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak("NVIDIA A100-SXM4-80GB", "fp32") == 19.5e12
    assert peak("Tesla V100-SXM2-16GB", "fp16") == 125e12
    assert peak("Tesla V100-SXM2-16GB") is None, "it has no bfloat16"
    assert peak("NVIDIA L40S") == 362e12
    assert peak("NVIDIA L4") == 121e12
    assert peak("NVIDIA A10G") == 70e12
    assert peak("NVIDIA GeForce GTX 1080") is None
    assert peak_flops(CPU, "bf16") is None


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
    for file, text in zip(files.values(), ("ab", "ba"), strict=True):
        file.write_text(text * 4000)
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


def test_rows_are_held_back_for_a_second_at_most_and_never_past_an_error(
    config, trial, monkeypatch
):
    """Nothing that the trial was killed by or ended with takes rows with it."""
    clock = [0.0]
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    written: list[list[int]] = []

    def look(self: Run, step: int) -> Any:
        written.append([r["step"] for r in trial.stitched()])
        if step == 9:
            raise MemoryError("struck")
        clock[0] += 0.3 if step < 5 else 2.0
        return batch(self, step)

    batch = Run.next_batch
    monkeypatch.setattr(Run, "next_batch", look)
    with pytest.raises(MemoryError):
        run(trial, config(train={"steps": 12, "validate_every": 0}))
    assert written[2] == []
    assert written[3] == written[4] == [1, 2, 3]  # after 0.9 s, as the next would be late
    assert written[5:] == [list(range(1, n)) for n in range(6, 10)]
    assert [r["step"] for r in trial.stitched()] == list(range(1, 9))
