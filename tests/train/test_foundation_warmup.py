"""Warm-up of the foundation alone: the embedding and the lowest blocks."""

from __future__ import annotations

import pytest
import torch

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model.foundation import in_foundation
from ablate.plan import effective_fingerprint, resolve
from ablate.train import run_trial
from ablate.train.run import Run, assemble

CPU = torch.device("cpu")
WARMUP = 4
SCHEDULE = {"name": "cosine_with_warmup", "warmup": WARMUP, "warmup_min_lr": 0.0}


def assembled(config, **sections) -> Run:
    return assemble(TrialConfig.from_mapping(config(**sections)), CPU)


def rates(run: Run, step: int) -> dict[str, float]:
    """Learning rate of each parameter at `step`."""
    run.set_rate(step)
    names = {id(p): n for n, p in run.model.named_parameters()}
    return {names[id(p)]: g["lr"] for g in run.optimiser.param_groups for p in g["params"]}


@pytest.mark.parametrize("optimiser", ["adamw", "lion", "muon"])
@pytest.mark.parametrize("layers", [0, 1])
def test_only_the_foundation_warms_up(layers: int, optimiser: str, config) -> None:
    scoped = {**SCHEDULE, "foundation_layers": layers}
    run = assembled(config, schedule=scoped, optim={"lr": 1e-2, "name": optimiser})
    for step in range(1, 13):
        found = rates(run, step)
        assert len(found) == len(run.names)
        for name, rate in found.items():
            settled = not in_foundation(name, layers)
            assert rate == run.rate(max(step, WARMUP) if settled else step), (step, name)
    first = rates(run, 1)
    assert first["transformer.wte.weight"] == pytest.approx(1e-2 / WARMUP)
    assert first["transformer.ln_f.weight"] == pytest.approx(1e-2)
    assert first["transformer.blocks.1.ff_out.weight"] == pytest.approx(1e-2)
    lowest = "transformer.blocks.0.ff_out.weight"
    assert first[lowest] == pytest.approx(1e-2 / WARMUP if layers else 1e-2)


def test_without_a_scope_the_groups_are_those_they_always_were(config) -> None:
    groups = assembled(config).optimiser.param_groups
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert not any(k in g for g in groups for k in ("settled", "lr_multiplier"))


def test_membership_sees_through_wrappers_and_block_groups() -> None:
    assert in_foundation("module._orig_mod.transformer.blocks.1.ff_proj.weight", 2)
    assert not in_foundation("transformer.blocks.2.ff_proj.weight", 2)
    assert in_foundation("transformer.block_groups.1.0.ff_proj.weight", 3, group_size=2)
    assert not in_foundation("transformer.block_groups.1.1.ff_proj.weight", 3, group_size=2)
    assert in_foundation("transformer.wpe.weight", 0)
    assert not in_foundation("transformer.ff_out.weight", 2)
    assert in_foundation("transformer.ff_out.weight", None)


def test_it_trains_another_way_and_continues_bit_for_bit(config, trial, tmp_path) -> None:
    from ablate.rundir import TrialDir

    def losses(folder: TrialDir) -> list[float]:
        return [r["train/loss"] for r in folder.stitched()]

    settings = config(schedule={**SCHEDULE, "foundation_layers": 1})
    whole, plain = TrialDir(tmp_path / "whole"), TrialDir(tmp_path / "plain")
    for folder, values in ((whole, settings), (plain, config(schedule=SCHEDULE))):
        folder.create(values, 12)
        run_trial(folder.acquire(), values)
    assert losses(whole) != losses(plain)
    trial.create(settings, 12)
    left = iter([None] * 2 + ["stop"])
    assert run_trial(trial.acquire(), settings, should_stop=lambda: next(left)).step == 3
    trial.newest_attempt().release(trial.state().replace(status="preempted"))
    assert run_trial(trial.acquire(), settings).status == "done"
    assert losses(trial) == losses(whole)


@pytest.mark.parametrize(
    ("schedule", "model", "named"),
    [
        ({"foundation_layers": 3}, {"n_layers": 2}, "exceeds model.n_layers=2"),
        ({"foundation_layers": -1}, {}, "must not be negative"),
        ({"foundation_layers": 1, "warmup": 0}, {}, "schedule.warmup is 0"),
        ({"foundation_layers": 1, "warmup": "0%"}, {}, "schedule.warmup is 0"),
        ({"foundation_layers": 1, "name": "constant"}, {}, "schedule.name=constant"),
    ],
)
def test_nonsense_is_refused_by_name(schedule, model, named) -> None:
    with pytest.raises(ConfigError, match=f"schedule.foundation_layers.*{named}"):
        TrialConfig.from_mapping({"schedule": schedule, "model": model})


@pytest.mark.parametrize(
    ("one", "other"), [("5%", 0.05), ("5%", 10), (20, "20 steps"), (10, "20480 tokens"), (0, "0%")]
)
def test_lengths_of_one_meaning_are_one_arm(one, other) -> None:
    train = {"steps": 200, "batch_size": 16, "sequence_length": 128}
    arms = [resolve({"train": train, "schedule": {"warmup": w}}) for w in (one, other)]
    assert effective_fingerprint(arms[0]) == effective_fingerprint(arms[1])
    assert effective_fingerprint(arms[0]) != effective_fingerprint(
        resolve({"train": train, "schedule": {"warmup": 30}})
    )


def test_a_foundation_of_everything_is_no_scope() -> None:
    def arm(layers: int | None, **model: object) -> str:
        schedule = {"foundation_layers": layers}
        return effective_fingerprint(resolve({"model": model, "schedule": schedule}))

    bare = {"layer_norm_with_affine": False, "weight_tying": True}
    assert arm(12, **bare) == arm(None, **bare) != arm(11, **bare)
    assert arm(12) != arm(None), "the final norm lies above it"
