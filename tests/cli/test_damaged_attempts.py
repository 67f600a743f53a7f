"""A damaged attempt.json through every verb: named, no dead end, and mended by retry and launch."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.errors import StudyError
from ablate.launch import budget
from ablate.launch.retrying import mend_states
from ablate.launch.stacks import Stacks
from ablate.rundir import StudyDir, TrialDir

sys.path.insert(0, str(Path(__file__).parent))
from written import end, make_study, start

Call = Callable[..., tuple[int, str, str]]
RECORD = "attempts/1/attempt.json"
DAMAGES = {"truncated": '{"host": "n', "empty": "", "number": "7", "wrong": '{"resumed": 5}'}
VERBS = {
    "status": ["s"],
    "list": [],
    "watch": ["s"],
    "logs": ["s"],
    "report": ["s", "--metric", "train/loss"],
    "spikes": ["s"],
    "sync": ["s", "--dry-run"],
    "prune": ["s"],
    "cancel": ["s"],
    "retry": ["s", "--dry-run"],
}
SILENT = {"list", "prune", "cancel", "retry"}
"""They need nothing of the file, or only look; what mends it says so."""


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.analysis.publish.draw", lambda *_: None)


def spoil(trial: TrialDir, how: str) -> Path:
    path = trial.path / RECORD
    path.unlink()
    if how == "folder":
        path.mkdir()
    else:
        path.write_text(DAMAGES[how])
    return path


def two_ended(tmp_path: Path) -> tuple[StudyDir, TrialDir, TrialDir]:
    study = make_study(tmp_path / "runs" / "s", 1, 2)
    for trial in study.trials():
        end(trial)
    first, second = study.trials()
    return study, first, second


@pytest.mark.parametrize("how", [*DAMAGES, "folder"])
def test_every_verb_names_it_and_shows_the_other_trials(
    call: Call, tmp_path: Path, how: str
) -> None:
    study, damaged, whole = two_ended(tmp_path)
    spoil(damaged, how)
    for verb, words in VERBS.items():
        code, out, err = call(verb, *words)
        assert code == (verb not in SILENT), f"{verb}: {err}"
        said = " ".join((out + err).split())
        assert f"{whole.id}: " not in err, verb
        assert (f"{RECORD} is damaged" in said) == (verb not in SILENT), f"{verb}: {said}"
        assert verb in SILENT or damaged.id in said
    assert call("diff", f"s/{damaged.id}", f"s/{whole.id}")[0] == 0
    states = [t.live_state().status for t in study.trials()]
    assert states == ["done", "done"]


@pytest.mark.parametrize("what", ["attempts", "."])
def test_a_file_in_place_of_a_folder_stops_no_other_trial(
    call: Call, tmp_path: Path, what: str
) -> None:
    _, damaged, whole = two_ended(tmp_path)
    shutil.rmtree(damaged.path / what)
    (damaged.path / what).resolve().touch()
    for verb in ("status", "report", "spikes", "sync"):
        code, out, err = call(verb, *VERBS[verb])
        assert code == 1, f"{verb}: {err}"
        assert "it is no folder" in " ".join((out + err).split()), verb
        assert f"{whole.id}: " not in err, verb
    for verb in ("list", "prune"):
        assert call(verb, *VERBS[verb])[0] == 0
    with pytest.raises(StudyError, match="it is no folder"):
        damaged.acquire(again=("done",))


@pytest.mark.parametrize("how", [*DAMAGES, "folder"])
def test_status_shows_what_is_known_of_one_that_has_not_ended(
    call: Call, tmp_path: Path, how: str
) -> None:
    """Before its process is missed, and after."""
    study = make_study(tmp_path / "runs" / "s", 1, 2)
    (running, gone) = study.trials()
    start(running, 10)
    start(gone, 20, age=500.0)
    for trial in (running, gone):
        spoil(trial, how)
    code, out, _ = call("status", "s", "--json")
    trials = json.loads(out)["trials"]
    assert code == 1
    assert [t["status"] for t in trials] == ["running", "preempted"]
    assert trials[0]["step"] == 10
    assert all("is damaged" in t["damage"] for t in trials)
    assert mend_states(study), "what is gone"
    code, out, _ = call("status", "s", "--json")
    assert [bool(t["damage"]) for t in json.loads(out)["trials"]] == [True, False]
    second = gone.acquire()
    assert second.number == 2
    assert gone.latest_row() == {
        "step": 20, "train/loss": 0.25, "tokens": 1280, "tokens_per_second": 640.0,
    }  # fmt: skip


@pytest.mark.parametrize("how", [*DAMAGES, "folder"])
def test_cancel_ends_it_and_a_budget_is_still_kept(call: Call, tmp_path: Path, how: str) -> None:
    study = make_study(tmp_path / "runs" / "s", 1, 1)
    (trial,) = study.trials()
    attempt = start(trial, 20, age=500.0)
    attempt.log_path.write_text("2026-01-01 00:00:00,000 INFO attempt 1\n")
    spoil(trial, how)
    assert budget.used_hours(study) > 24
    code, _, err = call("cancel", "s")
    assert code == 0, err
    assert trial.state().status == "cancelled"


def test_a_stack_is_known_by_the_events(tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "s", 1, 2)
    ids = [t.id for t in study.trials()]
    for trial in study.trials():
        attempt = start(trial, 20, age=500.0)
        attempt.append("events.jsonl", {"step": 0, "kind": "start", "stacked": 2, "seats": ids})
        spoil(trial, "empty")
    assert Stacks.of(study.trials(), 2).seats(study.trials()[0]) == tuple(ids)


@pytest.mark.parametrize("verb", ["retry", "launch"])
def test_retry_and_launch_mend_it_and_go_on(
    call: Call, tmp_path: Path, small: list[str], verb: str
) -> None:
    """Of a study that trains: the record is that of one which was never disturbed."""
    sweep = "# @package _global_\nsweep:\n  question: q\n  baseline: []\n"
    sweep += "  factors: {lr: [optim.lr=1e-2]}\n"
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "s.yaml").write_text(sweep + "  seeds: 1\n")
    words = ["sweep=s", "study=s", *small, "cluster.workers=1"]
    assert call("launch", *words)[0] == 0
    study = StudyDir(tmp_path / "runs" / "s")
    before = {t.id: list(t.stitched()) for t in study.trials()}
    damaged, other = study.trials()
    for trial in (damaged, other):
        spoil(trial, "truncated")
    # As if its process had been killed in the middle.
    attempt = damaged.attempts()[0]
    (attempt.path / "state.json").unlink()
    state = damaged.state().replace(status="running" if verb == "launch" else "failed", ended=None)
    damaged.write_state(state)
    if verb == "retry":
        attempt.conclude(state)
    os.utime(attempt.path / "lease", (1.0, 1.0))
    (damaged.path / "summary.json").unlink()
    code, out, err = call(*([verb, "s"] if verb == "retry" else [verb, *words]))
    assert code == 1, "it had something to mend"
    assert err.count("attempt.json is damaged") == 2, out + err
    assert [t.state().status for t in study.trials()] == ["done", "done"]
    assert [len(t.attempts()) for t in study.trials()] == [2, 1]
    for trial in study.trials():
        steps = [(r["step"], r["train/loss"]) for r in trial.stitched()]
        assert steps == [(r["step"], r["train/loss"]) for r in before[trial.id]]
    assert call("status", "s")[0] == 0
    assert call("report", "s", "--metric", "train/loss")[0] == 0
