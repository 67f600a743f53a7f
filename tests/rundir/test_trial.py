"""Laws of a trial's folder: one owner, a fence, each step once, checkpoints complete or absent."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import StudyError, TrialEndedError, TrialHeldError
from ablate.rundir import Attempt, State, TrialDir, mend_summary, summary_damage, write_summary
from ablate.rundir.names import ATTEMPT, METRICS, STATE


def make(path: Path, steps: int = 100) -> TrialDir:
    trial = TrialDir(path / "arm-s0-12345678")
    trial.create({"seed": 0}, steps)
    return trial


def bury(attempt: Attempt) -> None:
    """As if the process of this attempt had died."""
    record = attempt.record()
    record |= {"pid": 2**22 + 1, "process_started": "1"}
    (attempt.path / ATTEMPT).write_text(json.dumps(record))


def compete(path: Path, barrier: object, answers: object) -> None:
    for i in range(20):
        barrier.wait()
        try:
            answers.put((i, make(path / str(i)).acquire().number))
        except TrialHeldError:
            answers.put((i, None))
    barrier.wait()  # a winner lives until all have tried


def test_of_processes_that_try_at_once_exactly_one_gets_the_trial(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    barrier, answers = fork.Barrier(3), fork.Queue()
    processes = [fork.Process(target=compete, args=(tmp_path, barrier, answers)) for _ in range(3)]
    for p in processes:
        p.start()
    got = [answers.get(timeout=30) for _ in range(60)]
    for p in processes:
        p.join(10)
    assert Counter(i for i, number in got if number is not None) == Counter(range(20))
    assert {number for _, number in got} == {1, None}


def test_a_living_attempt_holds_its_trial(tmp_path: Path) -> None:
    trial = make(tmp_path)
    trial.acquire()
    with pytest.raises(TrialHeldError, match="attempt 1"):
        trial.acquire()


def test_an_attempt_that_was_fenced_off_changes_nothing_outside_its_folder(tmp_path: Path) -> None:
    trial = make(tmp_path)
    first = trial.acquire()
    bury(first)
    second = trial.acquire()
    assert second.number == 2
    before = trial.state()
    assert not first.is_current()
    assert not first.release(State(status="done", step=100))
    assert trial.state() == before
    assert second.release(State(status="preempted", step=7))
    assert trial.state().status == "preempted"


@pytest.mark.parametrize("text", ["", "[1]", "a: [1", "\x00"])
def test_a_damaged_configuration_is_written_anew_by_the_launch_once_it_is_gone(
    tmp_path: Path, text: str
) -> None:
    trial = make(tmp_path / "s" / "trials")
    (tmp_path / "s" / "manifest.json").write_text('{"command": "ablate launch sweep=x"}')
    path = trial.path / "config.yaml"
    path.write_text(text)
    with pytest.raises(StudyError, match=r"or delete it\. `ablate launch sweep=x` writes it"):
        trial.config()
    path.unlink()
    trial.create({"seed": 0}, 100)
    assert trial.config() == {"seed": 0}


def test_a_summary_is_rebuilt_from_what_the_record_has_of_numbers(tmp_path: Path) -> None:
    trial = make(tmp_path, steps=10)
    attempt = trial.acquire()
    assert mend_summary(trial) is not None, "it has none"
    assert trial.summary() is None, "and no record"
    for step in range(1, 11):
        attempt.append(METRICS, {"step": step, "train/loss": 1.0 / step, "tokens": 8 * step})
    attempt.append(METRICS, {"step": 10, "train/loss": "a letter", "tokens": [], "val/bpb": 2.0})
    attempt.release(State(status="done", step=10, steps=10))
    said = mend_summary(trial)
    assert said is not None
    assert "the record tells" in said
    assert trial.summary() == {"val/bpb": 2.0, "train/loss": 0.1, "steps": 10, "rebuilt": True}
    assert mend_summary(trial) is None
    assert summary_damage(trial) is None


@pytest.mark.parametrize("wakes", ["late", "in between", "before the other is done"])
def test_a_summary_of_a_newer_attempt_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wakes: str
) -> None:
    """Also where the older one had looked whether it still counts a moment before."""
    trial = make(tmp_path)
    first = trial.acquire()
    bury(first)
    second = trial.acquire()
    if wakes != "before the other is done":
        assert write_summary(second, {"train/loss": 2.0})
    answers = [True] if wakes == "in between" else []
    monkeypatch.setattr(first, "is_current", lambda: answers.pop() if answers else False)
    assert not write_summary(first, {"train/loss": 1.0})
    if wakes == "before the other is done":
        assert trial.summary() is None
        assert write_summary(second, {"train/loss": 2.0})
    assert trial.summary() == {"train/loss": 2.0}
    assert summary_damage(trial) is None


def test_a_state_written_by_a_fenced_off_attempt_is_not_believed(tmp_path: Path) -> None:
    trial = make(tmp_path)
    first = trial.acquire()
    bury(first)
    trial.acquire().release(State(status="done", step=100))
    trial.write_state(State(status="preempted", attempt=1))  # it had been stopped just before this
    assert trial.live_state().status == "done"


def test_what_has_ended_is_not_run_again_unasked(tmp_path: Path) -> None:
    trial = make(tmp_path)
    attempt = trial.acquire()
    attempt.release(State(status="failed"))
    bury(attempt)
    with pytest.raises(TrialEndedError):
        trial.acquire()
    assert trial.acquire(again=("failed",)).number == 2


def test_a_running_trial_without_its_process_is_preempted(tmp_path: Path) -> None:
    trial = make(tmp_path)
    attempt = trial.acquire()
    assert trial.live_state().status == "running"
    bury(attempt)
    assert trial.live_state().status == "preempted"


def test_a_folder_whose_owner_died_before_it_said_who_it_is_expires(tmp_path: Path) -> None:
    trial = make(tmp_path)
    folder = trial.path / "attempts" / "1"
    folder.mkdir(parents=True)
    with pytest.raises(TrialHeldError):
        trial.acquire()
    os.utime(folder, (1, 1))
    assert trial.acquire().number == 2


def test_numbers_of_attempts_that_were_set_aside_are_not_given_out_again(tmp_path: Path) -> None:
    trial = make(tmp_path)
    first = trial.acquire()
    first.append(METRICS, {"step": 1})
    first.release(State(status="done", step=1, steps=1))
    bury(first)
    trial.set_aside()
    assert trial.state().status == "pending"
    assert (trial.path / "aside-1" / "attempts" / "1" / METRICS).exists()
    assert not first.is_current()
    with pytest.raises(FileNotFoundError):
        first.begin_checkpoint(5)
    assert trial.acquire().number == 2
    assert list(trial.stitched()) == []


@pytest.mark.parametrize("line", range(5))
def test_killed_while_it_is_set_aside_it_is_set_aside_by_the_next_call(
    line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make(tmp_path)
    first = trial.acquire()
    first.append(METRICS, {"step": 1})
    trial.summary_path.write_text("{}")
    trial.events_path.write_text("{}")
    trial.metrics_path.write_text("")
    first.release(State(status="done", step=1, steps=1))
    bury(first)
    moves = iter(range(9))

    def move(old: Path, new: Path) -> None:
        if new.parent.name.startswith("aside") and next(moves) == line:
            raise KeyboardInterrupt
        os.rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", move)
        with pytest.raises(KeyboardInterrupt):
            trial.set_aside()
    trial.set_aside()
    assert (trial.state().status, trial.state().steps) == ("pending", 1)
    assert {p.name for p in trial.path.iterdir()} <= {"config.yaml", STATE, "aside-1", "aside-2"}
    assert trial.acquire().number == 2


def test_a_running_trial_cannot_be_set_aside(tmp_path: Path) -> None:
    trial = make(tmp_path)
    trial.acquire()
    with pytest.raises(TrialHeldError):
        trial.set_aside()


@settings(max_examples=60)
@given(
    steps=st.integers(1, 40),
    every=st.integers(1, 9),
    kills=st.lists(st.tuples(st.integers(0, 45), st.booleans(), st.booleans()), max_size=6),
)
def test_the_stitched_record_has_each_step_once_wherever_attempts_were_killed(
    tmp_path_factory: pytest.TempPathFactory,
    steps: int,
    every: int,
    kills: list[tuple[int, bool, bool]],
) -> None:
    """Attempts of random lengths, with torn lines, half checkpoints and politely saved stops."""
    trial = make(tmp_path_factory.mktemp("trial"), steps)
    last = 0
    for length, torn, saves in [*kills, (steps, False, True)]:
        attempt = trial.acquire()
        found = trial.newest_checkpoint()
        start = found[1] if found else 0
        if found:
            attempt.resumed_from(found[0].number, start)
        last = min(steps, start + length)
        for step in range(start + 1, last + 1):
            attempt.append(METRICS, {"step": step, "train/loss": 1 / step, "by": attempt.number})
            if step % every == 0 or (saves and step == last):
                attempt.begin_checkpoint(step)
                attempt.commit_checkpoint(step)
        if torn:
            with open(attempt.path / METRICS, "a") as file:
                file.write('{"step": 99, "tra')
            attempt.begin_checkpoint(last + 1)
        bury(attempt)
    rows = list(trial.stitched())
    assert [r["step"] for r in rows] == list(range(1, last + 1))
    assert [r["train/loss"] for r in rows] == [1 / s for s in range(1, last + 1)]
    owners = [r["by"] for r in rows]
    assert owners == sorted(owners)


def test_an_attempt_that_has_not_begun_hides_no_row(tmp_path: Path) -> None:
    trial = make(tmp_path)
    first = trial.acquire()
    first.append(METRICS, {"step": 1})
    bury(first)
    trial.acquire()
    assert [r["step"] for r in trial.stitched()] == [1]


def test_a_checkpoint_counts_only_when_it_is_complete(tmp_path: Path) -> None:
    trial = make(tmp_path)
    attempt = trial.acquire()
    (attempt.begin_checkpoint(10) / "model.pt").write_bytes(b"x")
    attempt.commit_checkpoint(10)
    (attempt.begin_checkpoint(20) / "model.pt").write_bytes(b"half")
    assert attempt.checkpoint_steps() == [10]
    assert trial.newest_checkpoint() == (attempt, 10) or trial.newest_checkpoint()[1] == 10
    attempt.commit_checkpoint(20)
    attempt.prune_checkpoints(1)
    assert attempt.checkpoint_steps() == [20]


def test_the_latest_row_is_the_last_complete_one(tmp_path: Path) -> None:
    trial = make(tmp_path)
    assert trial.latest_row() is None
    attempt = trial.acquire()
    for step in range(2000):
        attempt.append(METRICS, {"step": step, "filler": "x" * 50})
    with open(attempt.path / METRICS, "a") as file:
        file.write('{"step": 5000')
    assert trial.latest_row()["step"] == 1999
