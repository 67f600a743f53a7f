"""Several processes compute what one computes: losses, norms, measurements, validation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from crew import STEPS, Config, Crew, Rows, largest_differences, make_trial, said

from ablate.rundir import TrialDir
from ablate.train.parallel.pooling import pool


def test_measurements_of_parts_make_those_of_the_whole() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(draw.normal(size=(4, 1)), 1.0, (4, 500))
    columns = {
        "model/logit_max": logits.max(1),
        "model/logit_min": logits.min(1),
        "model/logit_mean": logits.mean(1),
        "model/logit_std": logits.std(1),
        "model/attention_logit_max/3": logits.max(1),
        "model/activation_rms/3": np.sqrt(np.square(logits).mean(1)),
        "model/weight_norm/3": np.full(4, 7.0),
    }
    whole = [logits.max(), logits.min(), logits.mean(), logits.std()]
    whole += [logits.max(), np.sqrt(np.square(logits).mean()), 7.0]
    found = pool(columns, lambda norms: float(norms[0]))
    assert list(found.values()) == pytest.approx(whole, rel=1e-12)


VARIETIES: dict[str, Config] = {
    "plain": {},
    "accumulated": {"train": {"micro_batch_size": 4}, "clip": {"name": "norm", "max_norm": 0.3}},
    "ratio": {
        # Of a bias of the keys Lion would make steps of its rate out of rounding alone.
        "model": {"include_bias": False},
        "clip": {"name": "ratio", "max_ratio": 1.01}, "optim": {"name": "lion", "lr": 1e-3},
    },
    "value": {"clip": {"name": "value", "max_value": 1e-3}, "loss": {"z_loss": 1e-4, "chunk": 64}},
    "olmo2": {
        "model": {
            "rope": True, "norm_after": True, "attention_layer_norm": True,
            "layer_norm_type": "rms", "include_bias": False, "weight_tying": False,
        },
        "train": {"activation_checkpointing": "whole_layer", "filter_repetitions": True},
        "data": {"document_masking": True},
    },
    "foundation": {
        "model": {
            "width_taper": 0.5, "width_match": "none", "norm_segments": 4, "norm_grad_clip": 1e-2,
            "position": "hybrid", "include_bias": False,
        },
        "schedule": {"warmup": 6, "foundation_layers": 1},
        "clip": {"name": "percentile_history", "history": 6, "percentile": 50.0},
        "optim": {"lr": 1e-2, "norm_scale_lr": 0.5},
    },
    "packed": {"batching": {"name": "packed"}, "train": {"micro_batch_size": 4}},
    "padded": {"batching": {"name": "padded"}},
}  # fmt: skip


def compare(crew: Crew, made: TrialDir, expected: Rows, processes: int, *, key_bias: bool) -> None:
    assert crew.run(made, processes) == [0] * processes, said(made)
    rows = list(made.stitched())
    assert len(rows) == STEPS
    found = largest_differences(rows, expected)
    # A bias of the keys changes nothing that the softmax sees: its gradient is 0 but for rounding,
    # which AdamW and Lion make an update of, and the largest logit alone shows it.
    loose = "model/attention_logit_max" if key_bias else "none"
    bounds = {name: 1e-3 if name.startswith(loose) else 1e-6 for name in found}
    far = {name: value for name, value in found.items() if not value < bounds[name]}
    assert not far
    assert found.keys() >= {"train/loss", "train/grad_norm", "train/update_norm", "val/bpb"}
    assert made.summary() is not None
    assert made.state().status == "done"


MORE = ("plain", "accumulated")
CASES = [
    *(("ddp", v, 2) for v in VARIETIES),
    *(("ddp", v, 4) for v in MORE),
    *(("fsdp", v, 2) for v in VARIETIES),
    *(("fsdp", v, 4) for v in MORE),
    *(("hsdp", v, 4) for v in MORE),
]
AT_EACH = [("fsdp", "accumulated", 2), ("hsdp", "accumulated", 4)]


@pytest.mark.parametrize(
    ("name", "variety", "processes", "mode"),
    [*((*case, "batch") for case in CASES), *((*case, "micro_batch") for case in AT_EACH)],
)
def test_several_processes_compute_what_one_computes(
    name: str,
    variety: str,
    processes: int,
    mode: str,
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
    alone: Callable[[Config], Rows],
) -> None:
    parallel = {"name": name, "grad_sync_mode": mode, "shard_size": 2 if name == "hsdp" else None}
    chosen = config(**VARIETIES[variety], parallel=parallel)
    key_bias = chosen["model"]["include_bias"]
    compare(crew, trial(chosen), alone(chosen), processes, key_bias=key_bias)


def test_accumulating_gradients_costs_no_further_sums_over_the_processes(
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
    tmp_path: Path,
) -> None:
    counts = []
    for micro in (None, 2):
        train = {"steps": 3, "micro_batch_size": micro, "measure_every": 0, "validate_every": 0}
        made, count = trial(config(train=train)), tmp_path / f"count{micro}"
        assert crew.run(made, 2, fault={"rank": 0, "count": str(count)}) == [0, 0], said(made)
        counts.append(len(count.read_text()))
    assert counts[0] == counts[1] > 3


def collectives(crew: Crew, made: TrialDir, processes: int, count: Path) -> dict[str, int]:
    """What the first process has taken part in, by the operation's name."""
    fault = {"rank": 0, "collectives": str(count)}
    assert crew.run(made, processes, fault) == [0] * processes, said(made)
    return json.loads(count.read_text())


@pytest.mark.parametrize(
    ("name", "processes"), [("fsdp", 2), pytest.param("hsdp", 4, marks=pytest.mark.slow)]
)
def test_divided_gradients_are_reduced_once_a_batch_however_it_is_cut(
    name: str,
    processes: int,
    crew: Crew,
    config: Callable[..., Config],
    tmp_path: Path,
) -> None:
    """Units: two blocks and the root. With grad_sync_mode=micro_batch each part is divided at once,
    and the copies of hsdp are summed once a batch all the same."""
    steps, units, found = 3, 3, {}
    for micro, mode in ((None, "batch"), (4, "batch"), (4, "micro_batch")):
        train = {"steps": steps, "micro_batch_size": micro, "measure_every": 0, "validate_every": 0}
        size = 2 if name == "hsdp" else None
        parallel = {"name": name, "grad_sync_mode": mode, "shard_size": size}
        made = make_trial(tmp_path / f"{micro}{mode}", config(train=train, parallel=parallel))
        found[micro, mode] = collectives(crew, made, processes, tmp_path / "counts")
    whole, late, early = found.values()
    assert whole["reduce_scatter_base"] == late["reduce_scatter_base"] == steps * units
    assert early["reduce_scatter_base"] == 2 * steps * units
    assert whole["allreduce"] == late["allreduce"] == early["allreduce"]
    assert late["allgather_base"] == early["allgather_base"] > whole["allgather_base"]
