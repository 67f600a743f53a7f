"""Modules of the user's own that read later tokens: refused before the first step, or never."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch

from ablate.config.fingerprint import fingerprint
from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig
from ablate.model.causality import find_leak
from ablate.plan.stacking import reason_alone
from ablate.rundir import TrialDir
from ablate.train import causal, run_trial
from ablate.train.causal import require_causal
from tests.train.ran import events, rows, run, weights
from tests.train.test_stacked import curve, members, train_together
from tests.train.tiny import without_clock

OWN = "tests.model.own_modules"
ALLOWED = {"check_causality": False}
LEAKS = [("layer_norm_type", "Rolled"), ("activation_type", "Centred"), ("position", "Mirrored")]


def curves(trial: TrialDir) -> list[dict]:
    return [without_clock(row) for row in rows(trial)]


@pytest.mark.parametrize(("field", "name"), LEAKS)
def test_a_leak_is_refused_in_one_paragraph_before_the_first_step(field, name, config, trial):
    with pytest.raises(ConfigError) as caught:
        run(trial, config(model={field: f"{OWN}:{name}"}))
    assert caught.value.field == f"model.{field}"
    message = str(caught.value)
    assert message.startswith(f"model.{field}={OWN}:{name}: reads later tokens: ")
    assert "\n" not in message
    assert "train.check_causality=false" in message
    assert rows(trial) == []
    assert events(trial, "start") == []


def test_it_is_taken_where_that_is_asked_for(config, trial):
    settings = config(model={"layer_norm_type": f"{OWN}:Rolled"}, train={"steps": 2, **ALLOWED})
    assert run(trial, settings).status == "done"


def test_of_two_modules_the_one_that_leaks_is_named(config, trial):
    own = {"layer_norm_type": f"{OWN}:Shifted", "activation_type": f"{OWN}:Centred"}
    with pytest.raises(ConfigError) as caught:
        run(trial, config(model=own))
    assert caught.value.field == "model.activation_type"


@pytest.mark.parametrize("name", ["Shifted", "RunningMean"])
def test_the_test_changes_no_bit(name, config, tmp_path):
    """Dropout draws, and so does the activation; buffers hold what training put into them."""
    own = {"layer_norm_type": f"{OWN}:{name}", "activation_type": f"{OWN}:Drawing"}
    found = {}
    for tested, train in (("yes", {}), ("no", ALLOWED)):
        one = TrialDir(tmp_path / tested)
        random.seed(5)  # for the slope of `Drawing`
        np.random.seed(5)  # noqa: NPY002
        run(one, config(model={**own, "residual_dropout": 0.2}, train={"steps": 4, **train}))
        found[tested] = curves(one), weights(one, 4)
    assert found["yes"][0] == found["no"][0]
    for key, weight in found["yes"][1].items():
        assert torch.equal(weight, found["no"][1][key]), key


def test_a_trial_that_has_begun_is_not_tested_again(config, tmp_path, monkeypatch):
    """It goes on as it began, also where it was begun by a version that tested nothing."""
    settings = config(
        model={"layer_norm_type": f"{OWN}:Shifted", "residual_dropout": 0.2}, train={"steps": 6}
    )
    whole, stopped = TrialDir(tmp_path / "whole"), TrialDir(tmp_path / "stopped")
    tested: list[int] = []
    monkeypatch.setattr(causal, "find_leak", lambda *a: tested.append(1) or find_leak(*a))
    run(whole, settings)
    assert tested == [1]
    stopped.create(settings, 6)
    attempt, asked = stopped.acquire(), iter(range(1, 7))
    result = run_trial(attempt, settings, should_stop=lambda: "stop" if next(asked) == 3 else None)
    assert (result.status, result.step) == ("preempted", 3)
    attempt.release(stopped.state().replace(status="preempted"))
    assert tested == [1, 1]
    assert run_trial(stopped.acquire(), settings).status == "done"
    assert tested == [1, 1]
    assert curves(stopped) == curves(whole)


def test_a_trial_of_ours_alone_pays_nothing(config, trial, monkeypatch):
    monkeypatch.setattr(causal, "find_leak", lambda *_: pytest.fail("tested"))
    settings = config(model={"init_fn": f"{OWN}:small"}, train={"steps": 1})
    assert run(trial, settings).status == "done"


def test_members_of_a_stack_are_those_of_ours_alone(config, tmp_path, monkeypatch):
    settings = members(config, train={"steps": 4})
    for field, name in LEAKS:
        own = members(config, 1, model={field: f"{OWN}:{name}"})[0]
        assert f"{OWN}:{name}" in (reason_alone(own) or "")
    monkeypatch.setattr(causal, "find_leak", lambda *_: pytest.fail("tested"))
    ends = train_together(tmp_path, settings)
    assert [getattr(end, "status", end) for end in ends] == ["done"] * 3


def test_in_a_stack_each_is_tested_and_no_bit_changes(config, tmp_path):
    """Plans form no such stack; a seat would do no harm."""
    shifted = {"model": {"layer_norm_type": f"{OWN}:Shifted"}}
    tested = members(config, 2, **shifted, train={"steps": 4})
    taken = members(config, 2, **shifted, train={"steps": 4, **ALLOWED})
    for folder, settings in (("tested", tested), ("taken", taken)):
        ends = train_together(tmp_path / folder, settings)
        assert [getattr(end, "status", end) for end in ends] == ["done"] * 2
    for i in range(2):
        assert curve(tmp_path / "tested", i) == curve(tmp_path / "taken", i)
    rolled = members(config, 2, model={"layer_norm_type": f"{OWN}:Rolled"})
    ends = train_together(tmp_path / "rolled", rolled)
    assert [type(end) for end in ends] == [ConfigError] * 2


def test_what_cannot_be_tested_is_trained_and_the_log_says_why(config, trial, caplog):
    settings = config(model={"activation_type": f"{OWN}:Counting"}, train={"steps": 1})
    assert run(trial, settings).status == "done"
    assert "Not tested for reading later tokens: model.activation_type=" in caplog.text
    assert "two passes over the same tokens differ" in caplog.text


def test_it_takes_less_than_a_fifth_of_a_second(config):
    tree = config(model={"d_model": 64, "layer_norm_type": f"{OWN}:Shifted"})
    typed, model = TrialConfig.from_mapping(tree), ModelConfig.from_mapping(tree["model"])
    require_causal(typed, model)
    seconds = []
    for _ in range(5):
        began = time.process_time()
        require_causal(typed, model)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.2


def test_the_field_is_part_of_a_trial_only_where_it_is_off(config):
    tree = config(model={"layer_norm_type": f"{OWN}:Rolled"})
    prints = [
        fingerprint({**tree, "train": {**tree["train"], **field}})
        for field in ({}, {"check_causality": True}, ALLOWED)
    ]
    assert prints[0] == prints[1] != prints[2]
