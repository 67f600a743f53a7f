"""What nobody would miss is refused, also where no sweep compares: promise 1 for `ablate train`."""

from __future__ import annotations

import pytest

from ablate.cli.multirun import run_multirun
from ablate.errors import ConfigError
from ablate.plan import plan_sweep, single_trial

INERT = [
    (["model.rope_theta=500"], "the position scheme is learned"),
    (["position=alibi", "model.relative_num_buckets=8"], "the position scheme is alibi"),
    (["optim.momentum=0.5"], "only optim.name=muon"),
    (["schedule=constant", "schedule.alpha_f=0.3"], "never decays"),
    (["norm=noisy", "model.norm_noise=0", "model.norm_noise_at=before"], "norm_noise is 0"),
    (["spikes.window=64"], "not observe"),
    (["clip=agc", "clip.max_norm=2"], "norm, percentile_history, zclip read it, not agc"),
    (["precision=bf16", "precision.initial_scale=8"], "scale gradients"),
    (["parallel=ddp", "parallel.wrapping_strategy=size_based"], "only fsdp and hsdp read it"),
    (["parallel.wrapping_strategy=size_based"], "not none"),
    (["parallel=fsdp", "parallel.shard_size=2"], "only parallel=hsdp reads it, not fsdp"),
    (["parallel.timeout=60"], "one process waits for no other"),
]


@pytest.mark.parametrize(("overrides", "why"), INERT, ids=lambda v: " ".join(v)[:40])
def test_a_setting_that_the_trial_never_reads_is_refused(overrides: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=r"has no effect here") as caught:
        single_trial(overrides)
    assert why in str(caught.value)
    assert str(caught.value).startswith(overrides[-1])


@pytest.mark.parametrize(
    "overrides",
    [
        ["position=rope", "model.rope_theta=500"],
        ["model.rope_theta=10000"],  # spells out what holds anyway
        ["optim=muon", "optim.momentum=0.5"],
        ["attention=math", "train.checkpoint_every=5", "data.cache_dir=/x", "track=wandb"],
        ["model=olmo2", "size=tiny", "cluster=slurm"],
        ["norm=noisy", "model.norm_noise_at=before"],
        ["parallel=hsdp", "parallel.shard_size=2", "parallel.wrapping_strategy=size_based"],
        ["parallel=ddp", "parallel.timeout=60", "parallel.wrapping_strategy=by_block"],
    ],
    ids=" ".join,
)
def test_what_is_read_is_taken_and_so_is_what_says_where_it_runs(overrides: list[str]) -> None:
    assert single_trial(overrides).without_effect == {}


def test_two_options_of_one_group_are_refused_and_one_twice_is_not() -> None:
    with pytest.raises(ConfigError, match="norm=noisy is given too"):
        single_trial(["norm=noisy", "norm=rms"])
    assert single_trial(["norm=rms", "norm=rms"]).trial.config["model"]["layer_norm_type"] == "rms"
    with pytest.raises(ConfigError, match="position=rope is given too"):
        plan_sweep(["sweep=hello", "position=rope", "position=alibi"])


def test_a_word_for_every_arm_must_reach_one_of_them() -> None:
    with pytest.raises(ConfigError, match=r"spikes.window=64: has no effect here"):
        plan_sweep(["sweep=hello", "spikes.window=64"])
    with pytest.raises(ConfigError, match=r"parallel.shard_size=2: has no effect here"):
        plan_sweep(["sweep=hello", "parallel=ddp", "parallel.shard_size=2"])
    skips = '+sweep.factors.skip=["spikes=skip_step"]'
    assert plan_sweep(["sweep=hello", skips, "spikes.window=64"]).arms


def test_a_word_for_every_trial_of_a_multirun_must_reach_one_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["size=tiny", "model.rope_theta=500"]
    assert run_multirun([*words, "position=rope,learned"], dry_run=True) == 0
    assert "2 of 2 trials would run" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="has no effect here"):
        run_multirun([*words, "position=alibi,learned"], dry_run=True)
    with pytest.raises(ConfigError, match="has no effect here"):
        run_multirun(["size=tiny", "model.rope_theta=500,600", "seed=0,1"], dry_run=True)
