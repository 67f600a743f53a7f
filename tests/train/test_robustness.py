"""Losses under noise in the input and on another domain, beside the same computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ran import weights

from ablate.config.fingerprint import fingerprint
from ablate.config.schema import DataConfig, TrialConfig
from ablate.data import open_data
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.rundir import Attempt, TrialDir
from ablate.train import run_trial

EOS, LENGTH, TOKENS, SHARE = 256, 32, 300, 0.2


@pytest.fixture
def other(tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.txt").write_text(f"{i} + {i * 17} = {i * 18}; " * 9)
    return folder


def finished(settings: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[Any], TrialDir]:
    trial = TrialDir(folder)
    trial.create(settings, settings["train"]["steps"])
    summary = run_trial(trial.acquire(), settings).summary
    rows = [
        {k: v for k, v in r.items() if not ("per_second" in k or k.startswith("time/"))}
        for r in trial.stitched()
    ]
    return summary, rows, trial


def again(trial: TrialDir) -> Attempt:
    """A new attempt of a trial whose last one was run by this very process."""
    attempt = trial.newest_attempt()
    assert attempt is not None
    attempt.release(trial.state().replace(status="preempted"))
    return trial.acquire()


def noisy(tokens: list[int], seed: int) -> list[int]:
    draw = np.random.default_rng([seed, 0])
    chances, steps = draw.random(1 << 16), draw.integers(1, len({*tokens} - {EOS}), 1 << 16)
    kinds = sorted({*tokens} - {EOS})
    return [
        kinds[(kinds.index(t) + int(n)) % len(kinds)] if u < SHARE and t != EOS else t
        for t, u, n in zip(tokens, chances, steps, strict=False)
    ]


def loss_by_hand(trial: TrialDir, settings: Any, seen: list[int], said: list[int]) -> float:
    """Windows of LENGTH that share a token; mean -log p of what is said, given what is seen."""
    model = OLMo(ModelConfig.from_mapping(settings["model"])).eval()
    model.load_state_dict(weights(trial, 12))
    nats = 0.0
    for start in range(0, TOKENS - 1, LENGTH - 1):
        stop = min(start + LENGTH, TOKENS)
        with torch.no_grad():
            logits = model(torch.tensor([seen[start:stop]])).logits[0, :-1].double()
        log_p = logits.log_softmax(-1)
        nats -= sum(log_p[i, t].item() for i, t in enumerate(said[start + 1 : stop]))
    return nats / (TOKENS - 1)


def test_both_losses_are_those_computed_by_hand(config: Any, tmp_path: Path, other: Path) -> None:
    settings = config(evaluate={"token_noise": SHARE, "shifted_data": str(other)})
    summary, rows, trial = finished(settings, tmp_path / "trial")
    own = open_data(DataConfig(**settings["data"])).held_out.read(0, TOKENS).tolist()
    wrong = noisy(own, settings["seed"])
    assert 0.1 < np.mean(np.array(own) != wrong) < 0.3
    by_hand = loss_by_hand(trial, settings, wrong, own)
    assert summary["robust/noise_loss"] == pytest.approx(by_hand, rel=1e-5)
    data = DataConfig(**{**settings["data"], "path": str(other)})
    found = open_data(data)
    parts = [found.held_out, found.train]
    text = [t for p in parts for t in p.read(0, len(p)).tolist()][:TOKENS]
    assert bytes(t for t in text if t != EOS).decode().count(" + ") > 10
    by_hand = loss_by_hand(trial, settings, text, text)
    assert summary["robust/shift_loss"] == pytest.approx(by_hand, rel=1e-5)
    assert summary["robust/shift_loss"] > summary["robust/noise_loss"] > summary["val/loss"]
    for kind in ("noise", "shift"):
        excess = summary[f"robust/{kind}_loss"] - summary["val/loss"]
        assert summary[f"robust/{kind}_excess"] == excess
    assert not any(k.startswith("robust/") for row in rows[:-1] for k in row)


def test_it_changes_no_step_and_off_leaves_no_trace(config: Any, tmp_path: Path) -> None:
    plain, curve, _ = finished(config(), tmp_path / "plain")
    off, same, _ = finished(config(evaluate={"token_noise": None}), tmp_path / "off")
    _, measured, _ = finished(config(evaluate={"token_noise": SHARE}), tmp_path / "on")
    assert curve == same
    assert plain.keys() == off.keys()
    assert [{k: v for k, v in r.items() if "robust" not in k} for r in measured] == curve
    nothing = {"token_noise": None, "shifted_data": None}
    assert fingerprint(config(evaluate=nothing)) == fingerprint(config())
    assert fingerprint(config(evaluate={**nothing, "token_noise": 0.1})) != fingerprint(config())


def test_an_interrupted_trial_measures_the_same(config: Any, tmp_path: Path, other: Path) -> None:
    evaluate = {"token_noise": SHARE, "shifted_data": str(other)}
    settings = config(evaluate=evaluate, train={"keep_final": False})
    whole, _, _ = finished(settings, tmp_path / "whole")
    trial = TrialDir(tmp_path / "trial")
    trial.create(settings, settings["train"]["steps"])
    reasons = iter([None, None, None, "enough"])
    stopped = run_trial(trial.acquire(), settings, should_stop=lambda: next(reasons))
    assert stopped.status == "preempted"
    run_trial(again(trial), settings)
    # As if that had been killed before its summary; no weights are left to measure.
    summary = run_trial(again(trial), settings).summary
    values = {k: v for k, v in whole.items() if k.startswith("robust/")}
    assert len(values) == 4
    assert {k: v for k, v in summary.items() if k.startswith("robust/")} == values


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_of_none_or_all_is_refused(config: Any, share: float) -> None:
    with pytest.raises(ConfigError, match=r"evaluate.token_noise.*must lie in \(0, 1\)"):
        TrialConfig.from_mapping(config(evaluate={"token_noise": share}))


def test_an_empty_name_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"evaluate.shifted_data.*is empty"):
        TrialConfig.from_mapping(config(evaluate={"shifted_data": " "}))
