"""A trial with a cache measures it after training, and trains as one without."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.config.fingerprint import fingerprint
from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError, DataError, StudyError
from ablate.launch.preflight import check_data
from ablate.rundir import Attempt, State, TrialDir
from ablate.train import inference, run_trial
from ablate.train import trial as training
from ablate.train.checkpoint import read_newest

ROOT = Path(__file__).parents[2]
ROPE = {"rope": True, "max_sequence_length": 32}
OWN = {"name": "dynamic", "budget": 16, "recent": 4, "sinks": 2, "tokens": 64, "chunk": 8}


def finished(config: Any, folder: Path, **sections: Any) -> tuple[dict[str, Any], list[Any]]:
    settings = config(**{"model": ROPE, **sections})
    trial = TrialDir(folder)
    trial.create(settings, settings["train"]["steps"])
    summary = run_trial(trial.acquire(), settings).summary
    return summary, [row["train/loss"] for row in trial.stitched()]


def test_the_summary_holds_the_cache_and_the_curve_is_the_same(config: Any, tmp_path: Path) -> None:
    plain, curve = finished(config, tmp_path / "plain")
    summary, same = finished(config, tmp_path / "cache", cache=OWN)
    assert curve == same
    assert not any(k.startswith("cache/") for k in plain)
    assert 0 < summary["cache/hit_rate"] < 1
    assert summary["cache/bytes"] < summary["cache/bytes_full"]
    assert summary["cache/perplexity"] > 1


@pytest.mark.parametrize("position", ["sinusoidal", "hybrid"])
def test_positions_of_a_fixed_table_train_and_are_measured_in_pure_bfloat16(
    position: str, config: Any, tmp_path: Path
) -> None:
    """Their sinusoids are float32, and the weights are not."""
    summary, curve = finished(
        config, tmp_path / "trial", model={"position": position, "max_sequence_length": 64},
        precision={"name": "pure_bf16"}, train={"steps": 1}, cache=OWN,
    )  # fmt: skip
    assert len(curve) == 1
    assert math.isfinite(curve[0])
    assert 0 < summary["cache/hit_rate"] < 1
    assert summary["cache/perplexity"] > 1


def test_without_a_cache_an_older_trial_is_the_same_trial(config: Any) -> None:
    now = config(cache={"name": "none"}, batching={"name": "concat"})
    older = {k: v for k, v in now.items() if k not in ("cache", "batching")}
    assert fingerprint(older) == fingerprint(now)
    assert fingerprint(config(cache=OWN)) != fingerprint(now)
    assert fingerprint(config(cache={"name": "none", "preheat": 8})) != fingerprint(now)
    bounded = config(cache=OWN)
    younger = ("preheat", "preheat_n", "prompts", "prompt_tokens")
    before = {k: v for k, v in bounded["cache"].items() if k not in younger}
    assert fingerprint({**bounded, "cache": before}) == fingerprint(bounded)


def test_preheating_is_in_the_summary_and_the_curve_is_the_same(
    config: Any, tmp_path: Path
) -> None:
    plain, curve = finished(config, tmp_path / "plain")
    small = {"name": "none", "preheat": 40, "preheat_n": [2, 3], "prompts": 6, "prompt_tokens": 16}
    summary, same = finished(config, tmp_path / "preheated", cache=small)
    assert curve == same
    assert not any(k.startswith(("cache/", "preheat/")) for k in plain)
    assert not any(k.startswith("cache/") for k in summary), "the bounded cache is none"
    assert 0 < summary["preheat/hit_rate"] <= 1
    assert 0 < summary["preheat/saved"] <= summary["preheat/hit_rate"] * 3 / 16
    assert 40 < summary["preheat/ngrams"] <= 80
    for name in ("first_token_seconds", "prompts_per_second", "bytes", "build_seconds"):
        assert summary[f"preheat/{name}"] > 0
    for name, ratio in (
        ("first_token_seconds", "first_token"),
        ("prompts_per_second", "throughput"),
    ):
        without = summary[f"preheat/{name}_without"]
        assert summary[f"preheat/{ratio}_ratio"] == pytest.approx(
            summary[f"preheat/{name}"] / without
        )


def test_preheating_without_enough_text_is_refused_before_the_first_step(
    config: Any, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"of cache.prompt_tokens=32 need 32000000 tokens"):
        finished(
            config, tmp_path / "prompts", cache={"name": "none", "preheat": 2, "prompts": 1_000_000}
        )
    assert not list(TrialDir(tmp_path / "prompts").stitched())
    huge = {"name": "none", "preheat": 2, "preheat_n": [10_000_000], "prompt_tokens": 10_000_001}
    with pytest.raises(DataError, match="no n-gram of 10000000"):
        finished(config, tmp_path / "corpus", cache=huge)


def kill_in(
    where: str, trial: TrialDir, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Attempt:
    """The trial is preempted when it calls that function, after its last step."""

    def kill(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    steps = settings["train"]["steps"]
    with monkeypatch.context() as patched:
        patched.setattr(inference if where == "measure_cache" else training, where, kill)
        attempt = trial.acquire()
        with pytest.raises(KeyboardInterrupt):
            run_trial(attempt, settings)
        attempt.release(State(status="preempted", step=steps, steps=steps))
    return attempt


@pytest.mark.parametrize("where", ["measure_cache", "drop_weights", "summarise"])
def test_killed_after_the_last_step_it_measures_the_trained_model(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Before, while and after the weights go that keep_final=false drops."""
    sections = {"cache": OWN, "train": {"keep_final": False}}
    whole, _ = finished(config, tmp_path / "whole", **sections)
    assert not list((tmp_path / "whole").rglob("model.pt"))

    settings = config(**{"model": ROPE, **sections})
    trial = TrialDir(tmp_path / "killed")
    trial.create(settings, settings["train"]["steps"])
    kill_in(where, trial, settings, monkeypatch)
    summary = run_trial(trial.acquire(), settings).summary
    for key in (k for k in whole if k.startswith("cache/")):
        assert summary[key] == whole[key], key
    assert not list(trial.path.rglob("model.pt"))


def test_weights_that_are_gone_are_not_measured_again(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the record of the attempt that measured them is damaged."""
    settings = config(model=ROPE, cache=OWN, train={"keep_final": False})
    trial = TrialDir(tmp_path / "killed")
    trial.create(settings, settings["train"]["steps"])
    attempt = kill_in("summarise", trial, settings, monkeypatch)
    (attempt.path / "attempt.json").write_text("{")
    with pytest.raises(StudyError, match="final weights, which are gone"):
        run_trial(trial.acquire(), settings)


@pytest.mark.parametrize("line", range(4))
def test_killed_while_the_weights_go_the_last_step_is_remembered(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """At whatever change of the folder: with its only checkpoint, all steps would be lost."""
    settings = config(model=ROPE, cache=OWN, train={"keep_final": False, "steps": 2})
    trial, changes = TrialDir(tmp_path / "trial"), iter(range(9))
    trial.create(settings, 2)
    attempt = trial.acquire()

    def killed(change: Any) -> Any:
        def changed(path: Any, *others: Any, **said: Any) -> Any:
            if attempt.checkpoints_path in Path(path).parents and next(changes) == line:
                raise KeyboardInterrupt
            return change(path, *others, **said)

        return changed

    def measure(*_: Any) -> dict[str, Any]:
        for module, name in ((os, "rename"), (os, "replace"), (os, "unlink"), (shutil, "rmtree")):
            monkeypatch.setattr(module, name, killed(getattr(module, name)))
        return {"cache/measured": 1}

    monkeypatch.setattr(training, "measure_inference", measure)
    with contextlib.suppress(KeyboardInterrupt):
        run_trial(attempt, settings)
    monkeypatch.undo()
    found = read_newest(trial, torch.device("cpu"))
    assert found is not None
    assert found.step == 2
    attempt.release(State(status="preempted", step=2, steps=2))
    assert run_trial(trial.acquire(), settings).step == 2
    assert len(list(trial.stitched())) == 2
    assert not list(trial.path.rglob("model.pt"))


def test_a_text_shorter_than_the_stream_is_refused_before_anything_is_written(
    config: Any, tmp_path: Path
) -> None:
    long = {**OWN, "tokens": 10_000_000}
    with pytest.raises(DataError, match=r"cache.tokens=10000000: the held-out text of data"):
        finished(config, tmp_path / "trial", cache=long)
    assert not list(TrialDir(tmp_path / "trial").stitched())
    with pytest.raises(DataError, match=r"cache.tokens=10000000"):
        check_data(config(model=ROPE, cache=long))


def test_what_cannot_be_measured_is_refused_before_the_first_step(config: Any) -> None:
    with pytest.raises(ConfigError, match="evictions shift"):
        TrialConfig.from_mapping(config(model={"alibi": True}, cache=OWN))


@pytest.mark.slow
def test_32768_tokens_stream_through_a_bounded_cache_within_4_gib() -> None:
    """In a process of its own, whose memory is all of it: libraries, weights, activations."""
    options = ["--stream=dynamic", "--tokens=32768", "--budget=512", "--chunk=64"]
    command = [sys.executable, "-m", "benchmarks.long_context", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    row = json.loads(done.stdout)
    assert row["peak"] < 4 * 2**30
    assert row["cache/bytes"] == 4 * 2 * 512 * 128 * 4, "layers x (keys, values) x held x d x fp32"
