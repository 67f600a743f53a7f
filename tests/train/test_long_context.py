"""A trial with a cache measures it after training, and trains as one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.config.fingerprint import fingerprint
from ablate.config.schema import CacheConfig, TrialConfig
from ablate.errors import ConfigError, DataError
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.long_context import stream_tokens

ROPE = {"rope": True, "max_sequence_length": 32}
OWN = {"name": "dynamic", "budget": 16, "recent": 4, "sinks": 2, "tokens": 64, "chunk": 8}


def finished(config: Any, folder: Path, **sections: Any) -> tuple[dict[str, Any], list[Any]]:
    settings = config(model=ROPE, **sections)
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


def test_without_a_cache_an_older_trial_is_the_same_trial(config: Any) -> None:
    now = config(cache={"name": "none"}, batching={"name": "concat"})
    older = {k: v for k, v in now.items() if k not in ("cache", "batching")}
    assert fingerprint(older) == fingerprint(now)
    assert fingerprint(config(cache=OWN)) != fingerprint(now)


def test_what_cannot_be_measured_is_refused_before_the_first_step(config: Any) -> None:
    with pytest.raises(ConfigError, match="evictions shift"):
        TrialConfig.from_mapping(config(model={"alibi": True}, cache=OWN))
    with pytest.raises(DataError, match="held-out text has 10 tokens"):
        stream_tokens(range(10), CacheConfig())
