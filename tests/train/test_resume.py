"""Killed anywhere and run again, a trial is the undisturbed one, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.errors import DataError
from ablate.model import here
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.checkpoint import load_model_state, prune, read_newest
from tests.train.tiny import without_clock

STEPS = 11
VARIANTS = {
    "adamw, dropout": {"model": {"residual_dropout": 0.2}},
    "muon, ratio clipping, fp16, accumulation": {
        "optim": {"name": "muon"},
        "clip": {"name": "ratio"},
        "precision": {"name": "fp16"},
        "train": {"micro_batch_size": 2},
        "model": {"attention_dropout": 0.1},
    },
}
KILLS = [
    "after_row:2",  # before the first checkpoint
    "in_save:1",  # half of the first model.pt
    "in_save:2",  # half of the first train.pt
    "before_commit",
    "after_commit",  # step 3 is saved, nothing else done
    "in_resume",
    "in_row:5",
    "in_save:3",  # half of the second checkpoint of this attempt
    "after_row:7",
    "in_validation",
    "after_row:10",
    "in_summary",  # all steps done and saved
]


def variant(config, name: str) -> dict[str, Any]:
    sections = {k: dict(v) for k, v in VARIANTS[name].items()}
    train = {
        "steps": STEPS,
        "checkpoint_every": 3,
        "validate_every": 4,
        **sections.pop("train", {}),
    }
    return config(train=train, **sections)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Without the clock."""
    return [
        without_clock(row)
        for row in TrialDir(folder).stitched(name)
        if row.get("kind") not in ("start", "resume")
    ]


def final(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    attempt, step = TrialDir(folder).newest_checkpoint() or pytest.fail("no checkpoint")
    path = attempt.checkpoint_path(step)
    return load_model_state(path), torch.load(path / "train.pt", weights_only=True)


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def timeless(summary: dict[str, Any]) -> dict[str, Any]:
    return without_clock(summary)


@pytest.mark.parametrize("name", VARIANTS)
def test_pain_34_killed_at_every_kind_of_point_it_equals_the_undisturbed_trial(
    name, config, trials, tmp_path
):
    settings = variant(config, name)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = trials.finish(whole, settings)
    for point in KILLS:
        assert trials.attempt(killed, settings, point) == -9, f"was not killed at {point}"
    summary = trials.finish(killed, settings)

    assert [row["step"] for row in rows(killed)] == list(range(1, STEPS + 1))
    assert rows(killed) == rows(whole)
    assert rows(killed, "events.jsonl") == rows(whole, "events.jsonl")
    assert_same(final(killed), final(whole))
    assert timeless(summary) == timeless(expected)


def test_killed_from_outside_at_any_time_it_equals_the_undisturbed_trial(config, trials, tmp_path):
    settings = variant(config, "adamw, dropout")
    settings["train"].update(steps=60, checkpoint_every=2, validate_every=7)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    trials.finish(whole, settings)
    draw, written, ends = random.Random(0), 0, []
    while written < 50 and 0 not in ends:
        written += draw.randint(3, 20)
        point = f"outside:{written}:{draw.uniform(0, 0.01)}"
        ends.append(trials.attempt(killed, settings, point))
    if 0 not in ends:
        trials.finish(killed, settings)
    assert ends.count(-9) >= 2
    assert rows(killed) == rows(whole)
    assert rows(killed, "events.jsonl") == rows(whole, "events.jsonl")
    assert_same(final(killed), final(whole))


def test_dropout_is_really_on(config, trials, tmp_path):
    """Otherwise the test above would not show that its random numbers continue."""
    losses = []
    for p in (0.0, 0.2):
        folder = tmp_path / str(p)
        trials.finish(folder, config(model={"residual_dropout": p}, train={"steps": 3}))
        losses.append([row["train/loss"] for row in rows(folder)])
    assert losses[0] != losses[1]


def test_a_finished_trial_run_again_gives_the_same_summary(config, trial):
    settings = variant(config, "adamw, dropout")
    trial.create(settings, STEPS)
    first = run_trial(trial.acquire(), settings)
    again = run_trial(reacquire(trial), settings)
    assert (again.status, again.step) == ("done", STEPS)
    assert again.summary == first.summary


def reacquire(trial: TrialDir):
    """A new attempt of a trial whose last one was run by this very process."""
    trial.newest_attempt().release(trial.state().replace(status="preempted"))
    return trial.acquire()


def test_a_stopped_trial_saves_and_says_why(config, trial, tmp_path):
    settings = variant(config, "adamw, dropout")
    trial.create(settings, STEPS)
    asked = []

    def stop_at_five() -> str | None:
        asked.append(1)
        return "time limit" if len(asked) == 5 else None

    result = run_trial(trial.acquire(), settings, should_stop=stop_at_five)
    assert (result.status, result.step, result.reason) == ("preempted", 5, "time limit")
    assert trial.newest_attempt().checkpoint_steps() == [5]

    result = run_trial(reacquire(trial), settings)
    assert (result.status, result.step) == ("done", STEPS)
    whole = TrialDir(tmp_path / "whole")
    whole.create(settings, STEPS)
    run_trial(whole.acquire(), settings)
    assert rows(trial.path) == rows(whole.path)


@pytest.mark.parametrize("low", [(True, True), (True, False), (False, True)])
def test_one_that_goes_on_by_another_kernel_says_so(config, trial, monkeypatch, caplog, low):
    """On a CPU with other instructions: attention=auto takes math with those for bfloat16, else
    sdpa."""
    settings = variant(config, "adamw, dropout") | {"precision": {"name": "bf16"}}
    trial.create(settings, STEPS)
    monkeypatch.setattr(here, "multiplies_bfloat16", lambda: low[0])
    run_trial(trial.acquire(), settings, should_stop=stop_after(5))
    monkeypatch.setattr(here, "multiplies_bfloat16", lambda: low[1])
    run_trial(reacquire(trial), settings)
    (resumed,) = [e for e in trial.stitched("events.jsonl") if e["kind"] == "resume"]
    told = [r.getMessage() for r in caplog.records if "undisturbed" in r.getMessage()]
    if low[0] == low[1]:
        assert (told, "moved" in resumed) == ([], False)
        return
    (line,) = told
    kernels = ("sdpa", "math") if low[0] else ("math", "sdpa")
    assert line.startswith("From step 6 on: ")
    assert "attention {}, before {}".format(*kernels) in line
    assert resumed["moved"] == trial.newest_attempt().record()["moved"]
    assert resumed["moved"] in line


def damage(path: Path, how: str) -> None:
    if how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "garbage":
        path.write_bytes(random.Random(0).randbytes(path.stat().st_size))
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "missing"])
@pytest.mark.parametrize("file", ["model.pt", "train.pt"])
def test_a_damaged_checkpoint_is_skipped_loudly_for_an_older_one(
    how, file, config, trial, tmp_path, caplog
):
    settings = variant(config, "adamw, dropout")
    settings["train"]["keep_checkpoints"] = 2
    trial.create(settings, STEPS)
    run_trial(trial.acquire(), settings, should_stop=stop_after(7))
    first = trial.newest_attempt()
    assert first.checkpoint_steps() == [6, 7]
    damage(first.checkpoint_path(7) / file, how)

    run_trial(reacquire(trial), settings)
    assert trial.newest_attempt().record()["resumed"] == {"attempt": 1, "step": 6}
    assert "cannot be read and is skipped" in caplog.text
    events = [e for e in trial.stitched("events.jsonl") if e["kind"] == "checkpoint_unreadable"]
    assert [e["at"] for e in events] == [7]
    whole = TrialDir(tmp_path / "whole")
    whole.create(settings, STEPS)
    run_trial(whole.acquire(), settings)
    assert [r["train/loss"] for r in rows(trial.path)] == [
        r["train/loss"] for r in rows(whole.path)
    ]


def test_no_garbage_whatsoever_makes_the_reader_raise(config, trial):
    settings = variant(config, "adamw, dropout")
    trial.create(settings, STEPS)
    run_trial(trial.acquire(), settings, should_stop=stop_after(1))
    folder = trial.newest_attempt().checkpoint_path(1)
    whole = (folder / "train.pt").read_bytes()
    for seed in range(300):
        draw = random.Random(seed)
        where, length = draw.randrange(len(whole)), draw.choice((1, 64, len(whole)))
        torn = whole[:where] + draw.randbytes(length) + whole[where + length :]
        (folder / "train.pt").write_bytes(draw.randbytes(2000) if seed % 3 == 0 else torn)
        found = read_newest(trial, torch.device("cpu"))
        assert found is None or found.step == 1


def stop_after(step: int):
    left = iter([None] * (step - 1) + ["stop"])
    return lambda: next(left)


def test_where_no_checkpoint_can_be_read_the_trial_starts_afresh(config, trial):
    settings = variant(config, "adamw, dropout")
    trial.create(settings, STEPS)
    run_trial(trial.acquire(), settings, should_stop=stop_after(4))
    for step in trial.newest_attempt().checkpoint_steps():
        damage(trial.newest_attempt().checkpoint_path(step) / "model.pt", "truncated")
    assert run_trial(reacquire(trial), settings).status == "done"
    assert [r["step"] for r in rows(trial.path)] == list(range(1, STEPS + 1))


@pytest.mark.parametrize(("keep", "left"), [(1, [11]), (2, [9, 11]), (-1, [3, 6, 9, 11])])
def test_the_newest_checkpoints_are_kept(keep, left, config, trial):
    settings = variant(config, "adamw, dropout")
    settings["train"]["keep_checkpoints"] = keep
    trial.create(settings, STEPS)
    run_trial(trial.acquire(), settings)
    assert trial.newest_attempt().checkpoint_steps() == left


def test_checkpoints_and_debris_of_earlier_attempts_go_when_newer_ones_stand(config, trial):
    settings = variant(config, "adamw, dropout")
    trial.create(settings, STEPS)
    run_trial(trial.acquire(), settings, should_stop=stop_after(4))
    first = trial.newest_attempt()
    (first.checkpoints_path / ".step-000006.tmp").mkdir()
    run_trial(reacquire(trial), settings)
    assert list(first.checkpoints_path.iterdir()) == []
    assert trial.newest_attempt().checkpoint_steps() == [11]


def test_one_that_was_fenced_off_takes_no_checkpoint_that_the_newer_attempt_may_read(trial):
    trial.create({"train": {"steps": 10}}, 10)
    first = trial.acquire()
    for step in (5, 10):
        first.begin_checkpoint(step)
        first.commit_checkpoint(step)
    (first.path.parent / "2").mkdir()
    prune(first, 1)
    assert first.checkpoint_steps() == [5, 10]


def test_without_keep_final_no_weights_stay_but_the_end_is_remembered(config, trial):
    settings = variant(config, "adamw, dropout")
    settings["train"]["keep_final"] = False
    trial.create(settings, STEPS)
    first = run_trial(trial.acquire(), settings)
    assert not list(trial.path.rglob("model.pt"))
    assert run_trial(reacquire(trial), settings).summary == first.summary


def test_a_full_disk_while_saving_leaves_the_older_checkpoint(config, trial, monkeypatch):
    settings = variant(config, "adamw, dropout")
    trial.create(settings, STEPS)
    save, calls = torch.save, []

    def full(value: Any, path: Path) -> None:
        calls.append(path)
        if len(calls) == 4:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save(value, path)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run_trial(trial.acquire(), settings)
    assert trial.newest_attempt().checkpoint_steps() == [3]
    shutil.rmtree(trial.newest_attempt().checkpoints_path / ".step-000006.tmp")


def test_a_trial_does_not_go_on_with_other_data(config, trial, text, tmp_path):
    folder = tmp_path / "text"
    shutil.copytree(text, folder)
    settings = variant(config, "adamw, dropout")
    settings["data"] = {**settings["data"], "path": str(folder)}
    trial.create(settings, STEPS)
    run_trial(trial.acquire(), settings, should_stop=stop_after(4))
    (folder / "00.txt").write_text("In the beginning was another word. " * 9)
    with pytest.raises(DataError, match="other data"):
        run_trial(reacquire(trial), settings)
