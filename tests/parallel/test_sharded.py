"""Divided weights: made as one process makes them, saved in pieces, read back by any number."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import STEPS, Config, Crew, Rows, largest_differences, said

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.rundir import TrialDir
from ablate.train import shards
from ablate.train.checkpoint import load_model_state

MODELS: dict[str, Config] = {
    "gpt2": {},
    "olmo2": {
        "rope": True, "norm_after": True, "attention_layer_norm": True, "layer_norm_type": "rms",
        "include_bias": False, "weight_tying": False, "init_fn": "mitchell", "block_group_size": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("gpt2", "by_block"),
        ("gpt2", None),
        ("olmo2", "by_block_group_and_size"),
        ("olmo2", "one_in_two"),
    ],
)
def test_weights_are_those_of_one_process_bit_for_bit(
    model: str,
    strategy: str | None,
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
) -> None:
    """At so small a rate the checkpoint holds the first weights; each piece was made on `meta`."""
    chosen = config(
        model=MODELS[model],
        train={"steps": 1, "measure_every": 0},
        optim={"lr": 1e-60},
        parallel={"name": "fsdp", "wrapping_strategy": strategy},
    )
    made = trial(chosen)
    assert crew.run(made, 2) == [0, 0], said(made)
    newest = made.newest_attempt()
    assert newest is not None
    found = load_model_state(newest.checkpoint_path(1))
    expected = OLMo(ModelConfig.from_mapping(chosen["model"]), seed=chosen["seed"]).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def stop_after(step: int, rank: int) -> Config:
    return {"rank": rank, "step": step, "signal": "SIGUSR2"}


@pytest.mark.parametrize("name", ["fsdp", "hsdp"])
def test_one_two_four_one(
    name: str,
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
    alone: Callable[[Config], Rows],
) -> None:
    """One process writes a file of its own kind; the others read it, and the reverse."""
    chosen = config(
        parallel={"name": name, "shard_size": 2 if name == "hsdp" else None},
        clip={"name": "ratio", "max_ratio": 1.02},
    )
    made = trial(chosen)
    for processes, step in ((1, 5), (2, 10), (4, 15)):
        crew.run(made, processes, stop_after(step, processes - 1))
        state = made.state()
        assert (state.status, state.step) == ("preempted", step), said(made)
        newest = made.newest_attempt()
        assert newest is not None
        assert newest.checkpoint_steps() == [step]
        pieces = list(newest.checkpoint_path(step).glob("*.distcp"))
        assert len(pieces) == (processes if processes > 1 else 0)
    assert crew.run(made, 1) == [0], said(made)
    rows = list(made.stitched())
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1))
    found = largest_differences(rows, alone(chosen))
    resumed = [(a.record()["resumed"] or {}).get("step") for a in made.attempts()]
    assert resumed == [None, 5, 10, 15]
    for column in ("train/loss", "train/grad_norm", "val/loss"):
        assert found[column] < 1e-6, found


@pytest.mark.parametrize("damage", ["cut", "changed", "metadata", "missing"])
def test_a_damaged_piece_is_not_trusted(
    damage: str, crew: Crew, config: Callable[..., Config], trial: Callable[[Config], TrialDir]
) -> None:
    """The older checkpoint is taken, by all processes, and the record says so."""
    chosen = config(
        parallel={"name": "fsdp"},
        train={"steps": 8, "checkpoint_every": 2, "keep_checkpoints": 2, "measure_every": 0},
    )
    made = trial(chosen)
    crew.run(made, 2, {"rank": 0, "step": 6, "signal": "SIGKILL"})
    first = made.newest_attempt()
    assert first is not None
    assert first.checkpoint_steps() == [2, 4]
    hurt(first.checkpoint_path(4), damage)
    assert crew.run(made, 2) == [0, 0], said(made)
    second = made.newest_attempt()
    assert second is not None
    assert second.record()["resumed"] == {"attempt": 1, "step": 2}
    kinds = [e["kind"] for e in made.stitched("events.jsonl")]
    assert "checkpoint_unreadable" in kinds


def hurt(folder: Path, damage: str) -> None:
    file = folder / ("__1_0.distcp" if damage != "metadata" else shards.METADATA)
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        os.truncate(file, file.stat().st_size // 2)
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trapped",)


def test_metadata_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.chdir(tmp_path)
    (tmp_path / shards.METADATA).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(pickle.UnpicklingError, match="asks for"):
        shards.shapes(tmp_path)
    assert not (tmp_path / "trapped").exists()


def test_a_death_between_pieces_leaves_no_checkpoint(
    crew: Crew, config: Callable[..., Config], trial: Callable[[Config], TrialDir]
) -> None:
    chosen = config(
        parallel={"name": "fsdp"}, train={"steps": 6, "checkpoint_every": 3, "measure_every": 0}
    )
    made = trial(chosen)
    crew.run(made, 2, {"rank": 1, "save": 1, "signal": "SIGKILL"})
    first = made.newest_attempt()
    assert first is not None
    assert first.checkpoint_steps() == []
    assert crew.run(made, 2) == [0, 0], said(made)
    assert made.state().status == "done"


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"optim": {"name": "muon"}}, "optim.name=muon"),
        ({"precision": {"name": "fp16"}}, "precision.name=fp16"),
        ({"spikes": {"name": "rewind"}}, "spikes.name=rewind"),
        ({"train": {"compile": True}}, "train.compile=true"),
    ],
)
def test_what_divided_weights_cannot_do_is_refused(sections: Config, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TrialConfig.from_mapping({**sections, "parallel": {"name": "fsdp"}})
