"""Arms and ids of single trials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.errors import ConfigError
from ablate.plan import arm_name, resolve, single_trial


def test_nothing_overridden_is_the_baseline(tmp_path) -> None:
    single = single_trial([], cwd=tmp_path)
    assert single.study == "train"
    assert single.arm.name == "baseline"
    assert single.trial.id == f"baseline-s0-{single.trial.fingerprint[:8]}"
    assert resolve(single.trial.config) == single.trial.config


def test_seed_rate_paths_and_running_do_not_name_an_arm() -> None:
    overrides = (
        "seed=3 optim.lr=1e-3 study=x runs_dir=y data.path=z data.cache_dir=c track=wandb "
        "cluster.workers=2 train.checkpoint_every=5 train.device=cpu force=true"
    )
    assert arm_name(overrides.split()) == "baseline"


def test_the_arm_is_named_after_what_was_overridden() -> None:
    assert arm_name(["seed=3", "position=rope"]) == "position-rope"
    assert arm_name(["model.norm_after=true", "position=rope"]) == "norm_after-true+position-rope"
    assert arm_name(["model.sliding_window_pattern=[4,4,-1]"]) == "sliding_window_pattern-4-4--1"
    assert arm_name(["position=rope", "size=tiny"], common=["size=tiny"]) == "position-rope"


@given(st.permutations(["position=rope", "norm=rms", "model.n_layers=2", "seed=1"]))
def test_the_order_of_overrides_does_not_matter_to_the_name(overrides) -> None:
    assert arm_name(overrides) == arm_name(sorted(overrides))


def test_a_long_name_is_cut_and_stays_distinct() -> None:
    many = [f"model.field_number_{i}=value" for i in range(12)]
    names = {arm_name(many), arm_name(many[:-1])}
    assert len(names) == 2
    assert all(len(name) <= 80 for name in names)


def test_the_rate_is_part_of_the_id_where_it_is_given(tmp_path) -> None:
    single = single_trial(["size=tiny", "optim.lr=3e-3", "seed=2", "study=s"], cwd=tmp_path)
    assert single.study == "s"
    assert single.trial.lr == 0.003
    assert single.trial.id.startswith("size-tiny-s2-lr0.003-")
    assert single.arm.parameters > 0


def test_a_sweep_is_no_single_trial(tmp_path) -> None:
    for override in ("sweep=hello", "sweep.seeds=3"):
        with pytest.raises(ConfigError, match="a single trial has no sweep"):
            single_trial([override], cwd=tmp_path)
