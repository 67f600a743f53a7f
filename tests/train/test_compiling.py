"""Compiled steps compute what eager ones do, are compiled once, and only where that pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ablate.config.fingerprint import fingerprint
from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig
from ablate.model.compile_rule import decide
from ablate.plan import resolve
from ablate.plan.speed import speed_key
from ablate.rundir import TrialDir
from ablate.train.batch import to_tensors
from ablate.train.compiling import compile_model, warm_up
from ablate.train.run import Run, assemble
from tests.train.ran import CPU, events, rows, run

ROOT = Path(__file__).parents[2]

# ---- when


def decision(device: str = "cpu", **sections: Any) -> tuple[bool, str]:
    model = {"d_model": 128, "n_heads": 4, "n_layers": 4, **sections.pop("model", {})}
    model |= {"vocab_size": 257, "embedding_size": None, "eos_token_id": 256, "pad_token_id": 256}
    train = {"compile": "auto", "batch_size": 16, "sequence_length": 256}
    train |= sections.pop("train", {})
    trial = TrialConfig.from_mapping({"model": model, "train": train, **sections})
    found = decide(trial, ModelConfig.from_mapping(model), device)
    return found.compiled, found.reason


def test_auto_compiles_where_the_run_is_long_enough() -> None:
    no, reason = decision(train={"steps": 200})
    assert not no
    assert "would not win back 2 x 30 s" in reason
    yes, reason = decision(train={"steps": 20_000})
    assert yes
    assert "wins back" in reason
    assert not decision(train={"steps": 1_000})[0]
    assert decision(train={"steps": 1_000, "batch_size": 128})[0], "by work, not by steps"
    assert not decision("cuda", train={"steps": 2_000})[0]
    assert decision("cuda", model={"n_layers": 32}, train={"steps": 20_000})[0]


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"model": {"norm_noise": 0.1}}, "norm_noise"),
        ({"parallel": {"name": "fsdp"}}, "parallel=fsdp"),
        ({"batching": {"name": "dynamic"}}, "many shapes"),
    ],
)
def test_auto_leaves_out_what_cannot_be_compiled(sections: dict[str, Any], reason: str) -> None:
    compiled, said = decision(train={"steps": 10**6}, **sections)
    assert not compiled
    assert reason in said


def test_what_is_asked_for_is_done_and_anything_else_is_refused() -> None:
    assert decision(train={"compile": True, "steps": 1}) == (True, "asked for")
    assert decision(train={"compile": False, "steps": 10**6}) == (False, "not asked for")
    with pytest.raises(ConfigError, match=r"train\.compile"):
        decision(train={"compile": "perhaps"})


def test_the_fingerprint_tells_compiled_from_eager(config) -> None:
    trees = [{**config(), "train": {**config()["train"], "compile": c}} for c in (False, True)]
    assert fingerprint(trees[0]) != fingerprint(trees[1])


GRAPHS = {"compile": True, "compile_mode": "reduce-overhead"}


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"train": {**GRAPHS, "compile": False}}, "train.compile_mode"),
        ({"train": {**GRAPHS, "device": "cpu"}}, "train.compile_mode"),
        ({"train": {**GRAPHS, "micro_batch_size": 8}}, "train.compile_mode"),
        ({"train": {**GRAPHS, "compile_mode": "max-autotune"}}, "train.compile_mode"),
        ({"train": GRAPHS, "parallel": {"name": "ddp"}}, "parallel.name"),
        ({"train": GRAPHS, "batching": {"name": "dynamic"}}, "batching.name"),
    ],
)
def test_cuda_graphs_are_refused_where_they_cannot_be(sections: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}="):
        TrialConfig.from_mapping({**sections, "train": {"batch_size": 16, **sections["train"]}})


@pytest.mark.parametrize("compile", [True, "auto"])
def test_cuda_graphs_are_refused_by_a_trial_that_starts_on_a_cpu(compile: Any, config) -> None:
    """The plan cannot know where train.device=auto ends."""
    train = {**config()["train"], **GRAPHS, "compile": compile, "device": "auto"}
    with pytest.raises(ConfigError, match=r"train\.compile_mode=reduce-overhead.* on cpu"):
        assemble(TrialConfig.from_mapping({**config(), "train": train}), CPU)


def test_cuda_graphs_are_asked_of_torch_and_told_of_each_step(
    config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, steps = [], []
    monkeypatch.setattr(torch, "compile", lambda f, **o: asked.append(o))
    mark = "cudagraph_mark_step_begin"
    monkeypatch.setattr(torch.compiler, mark, lambda: steps.append(1))
    for graphs in ({}, GRAPHS):
        tree = {**config(), "train": {**config()["train"], "device": "auto", **graphs}}
        trial = TrialConfig.from_mapping(tree)
        compiled = compile_model(SimpleNamespace(), trial, torch.device("cuda"))
        Run.begin_step(SimpleNamespace(compiled=compiled, config=trial, model=None), 1)  # type: ignore[arg-type]
    assert [options.get("mode") for options in asked] == [None] * 2 + ["reduce-overhead"] * 2
    assert steps == [1]


def test_a_mode_is_part_of_a_trial_and_the_default_is_what_it_was(config) -> None:
    tree = resolve(config())
    older = {k: v for k, v in tree["train"].items() if k != "compile_mode"}
    assert fingerprint(tree) == fingerprint({**tree, "train": older})
    assert speed_key(tree) == speed_key({**tree, "train": older})
    changed = {**tree, "train": {**older, "compile_mode": "reduce-overhead"}}
    assert fingerprint(changed) != fingerprint(tree)
    assert speed_key(changed) != speed_key(tree)


# ---- what


def gradients(ready: Any, number: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    ready.model.train()
    losses = ready.losses(ready.forward, to_tensors(ready.make_batch(number), CPU))
    losses.sum().backward()
    found = [p.grad.clone() for p in ready.parameters]
    ready.optimiser.zero_grad(set_to_none=True)
    return losses.detach(), found


STILL = {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "documents, z-loss": {
        "model": {"rope": True, "sliding_window_pattern": [8, -1], "vocab_size": 257},
        "data": {"document_masking": True},
        "loss": {"z_loss": 1e-3},
    },
    "bf16, recomputed": {
        "model": {"alibi": True, "layer_norm_type": "rms", "attention_layer_norm": True,
                  "weight_tying": False, "include_bias": False, "norm_after": True},
        "precision": {"name": "bf16"},
        "train": {"activation_checkpointing": "one_in_two"},
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_steps_compute_what_eager_ones_do_and_are_traced_once(
    config, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """By torch's tracer and derivatives, without its code generator (which a slow test has)."""
    from torch._dynamo.utils import counters

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **o: compile_(f, backend="aot_eager", **o))
    torch._dynamo.reset()
    counters.clear()
    sections = VARIANTS[variant]
    ready = {}
    for compiled in (False, True):
        train = {**sections.get("train", {}), "compile": compiled}
        made = config(**{**sections, "train": train, "model": sections["model"] | STILL})
        ready[compiled] = assemble(TrialConfig.from_mapping(made), CPU)
    assert ready[False].compiled is None
    assert warm_up(ready[True]) is not None
    assert all(p.grad is None for p in ready[True].parameters)
    graphs = counters["stats"]["unique_graphs"]
    for number in (1, 2, 3):
        (want, one), (got, other) = gradients(ready[False], number), gradients(ready[True], number)
        loose = variant.startswith("bf16")
        torch.testing.assert_close(got, want, rtol=2e-3 if loose else 1e-5, atol=1e-5)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(
                b, a, rtol=1e-4, atol=(5e-2 if loose else 1e-5) * a.abs().max()
            )
    assert counters["stats"]["unique_graphs"] == graphs, "nothing is traced again"
    assert not counters["graph_break"]
    assert graphs <= 3, "blocks with and without a window, and the head"
    torch._dynamo.reset()


# ---- with the code generator


TRIAL = """
import json, sys
from pathlib import Path
from ablate.rundir import TrialDir
from ablate.train import run_trial
folder, config, stop = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
trial = TrialDir(folder)
if not trial.path.exists():
    trial.create(config, config["train"]["steps"])
seen = []
stop_at = lambda: "asked" if stop and len(seen) >= stop else None
run_trial(trial.acquire(), config, should_stop=stop_at, on_row=seen.append)
"""


def in_process(folder: Path, config: dict[str, Any], stop: int = 0) -> subprocess.Popen[str]:
    """A process each, so that nothing compiled is at hand but what lies in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": ""}
    environment.pop("TORCHINDUCTOR_CACHE_DIR")
    command = [sys.executable, "-c", TRIAL, str(folder), json.dumps(config), str(stop)]
    return subprocess.Popen(command, env=environment, text=True)


@pytest.mark.slow
def test_compiled_trials_resume_bit_for_bit_and_share_what_was_compiled(config, tmp_path) -> None:
    sections = {
        "model": {"rope": True, "residual_dropout": 0.1},
        "precision": {"name": "bf16"},
        "train": {"compile": True, "steps": 6, "checkpoint_every": 2, "validate_every": 3},
    }
    whole = config(**sections)
    # Two that begin together: one compiles, the other finds what it made.
    pair = [in_process(tmp_path / name, {**whole, "seed": i}) for i, name in enumerate("ab")]
    assert [p.wait(800) for p in pair] == [0, 0]
    made = [events(TrialDir(tmp_path / name), "compiled")[0] for name in "ab"]
    assert sorted(m["made"] > 0 for m in made) == [False, True]
    assert all(m["made"] + m["found"] >= 2 for m in made)
    assert in_process(tmp_path / "c", {**whole, "seed": 0}, stop=3).wait(400) == 0
    assert in_process(tmp_path / "c", {**whole, "seed": 0}).wait(400) == 0
    keys = ("train/loss", "train/grad_norm", "train/update_norm", "val/loss")
    curves = [
        [{k: row.get(k) for k in keys} for row in rows(TrialDir(tmp_path / name))] for name in "ac"
    ]
    assert len(curves[0]) == 6
    assert curves[0] == curves[1]
    eager = TrialDir(tmp_path / "eager")
    run(eager, config(**{**sections, "train": {**sections["train"], "compile": False}}, seed=0))
    for a, b in zip(curves[0], rows(eager), strict=True):
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=5e-3)
