"""The lease across machines: respected while it is renewed, lost when not, fenced by number."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablate.errors import StudyError, TrialHeldError
from ablate.rundir import LEASE_SECONDS, Attempt, State, StudyDir, TrialDir, attempt, names


@pytest.fixture
def trial(tmp_path: Path) -> TrialDir:
    trial = StudyDir(tmp_path).trial("arm-s0-12345678")
    trial.create({"seed": 0}, 10)
    return trial


def elsewhere(attempt: Attempt, **facts: object) -> None:
    """As if another machine had made the attempt."""
    path = attempt.path / names.ATTEMPT
    path.write_text(json.dumps({**attempt.record(), "host": "elsewhere", **facts}))


def age(attempt: Attempt, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(attempt.path / names.LEASE, (then, then))


def test_a_live_lease_of_another_machine_is_respected_and_expires(trial: TrialDir) -> None:
    first = trial.acquire()
    elsewhere(first)
    age(first, LEASE_SECONDS - 10)
    with pytest.raises(TrialHeldError, match="elsewhere"):
        trial.acquire()
    assert trial.live_state().status == "running"
    age(first, LEASE_SECONDS + 1)
    assert trial.live_state().status == "preempted"
    second = trial.acquire()
    assert second.number == 2
    assert not first.is_current()
    assert not first.release(State(status="done"))
    assert trial.state().status == "running"


def test_a_lease_of_a_clock_that_was_wrong_expires_too(trial: TrialDir) -> None:
    """Years ahead, and put right since; a clock that is an hour behind ends no living attempt."""
    first = trial.acquire()
    elsewhere(first)
    age(first, -3600)
    with pytest.raises(TrialHeldError):
        trial.acquire()
    age(first, -3 * 365 * 86_400)
    assert trial.live_state().status == "preempted"
    assert trial.acquire().number == 2


def test_a_lease_of_the_future_counts_from_when_it_is_seen(trial: TrialDir) -> None:
    """By the clock of the files, which was put back: a dead trial is free a minute later, not after
    the hours that its lease lies ahead; a living one renews it.
    """
    first = trial.acquire()
    elsewhere(first)
    age(first, -20 * 3600)
    with pytest.raises(TrialHeldError):
        trial.acquire()
    assert abs(first.lease_age()) < 10
    first.heartbeat()
    with pytest.raises(TrialHeldError):
        trial.acquire()
    age(first, LEASE_SECONDS + 1)
    assert trial.acquire().number == 2


def test_whose_clock_is_right_is_asked_of_the_files(
    trial: TrialDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is an hour behind; the lease stays as it was dated."""
    first = trial.acquire()
    elsewhere(first)
    before = (first.path / names.LEASE).stat().st_mtime
    now = time.time()
    monkeypatch.setattr(attempt.time, "time", lambda: now - 3600)
    with pytest.raises(TrialHeldError):
        trial.acquire()
    assert (first.path / names.LEASE).stat().st_mtime == before


def test_a_disk_that_is_full_at_the_start_leaves_no_attempt_that_seems_to_run(
    trial: TrialDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(attempt, "write_json", full)
        with pytest.raises(OSError, match="No space"):
            trial.acquire()
    assert trial.attempts() == []
    assert trial.live_state().status == "pending"
    assert trial.acquire().number == 1


def test_a_trial_whose_folder_was_deleted_is_not_made_again(trial: TrialDir) -> None:
    """Whoever deletes a study while it runs does not want half of it back."""
    shutil.rmtree(trial.path)
    with pytest.raises(StudyError, match="is missing"):
        trial.acquire()
    assert not trial.path.exists()


def test_a_container_of_the_same_host_name_is_another_machine(trial: TrialDir) -> None:
    first = trial.acquire()
    path = first.path / names.ATTEMPT
    path.write_text(json.dumps({**first.record(), "machine": "another boot", "pid": 2**22 - 1}))
    assert first.is_alive()  # not asked of our process table
    age(first, LEASE_SECONDS + 1)
    assert not first.is_alive()


def test_an_earlier_incarnation_of_a_job_gives_way_at_once(trial: TrialDir) -> None:
    first = trial.acquire(job_id="12_3", restart=0, node="n1")
    elsewhere(first)
    with pytest.raises(TrialHeldError):
        trial.acquire(job_id="12_3", restart=0, node="n2")
    with pytest.raises(TrialHeldError):
        trial.acquire(job_id="13_3", restart=1, node="n2")
    second = trial.acquire(job_id="12_3", restart=1, node="n2")
    assert second.record()["restart"] == 1
    assert not first.is_current()


def test_a_stopped_process_loses_its_lease_and_notices_when_it_wakes(trial: TrialDir) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ablate.rundir import TrialDir\n"
        "a = TrialDir(Path(sys.argv[1])).acquire(); print('held', flush=True)\n"
        "while a.is_current(): time.sleep(0.05)\n"
        "print('fenced off', a.release(a.trial.state()), flush=True)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(trial.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        held = trial.newest_attempt()
        assert held is not None
        age(held, LEASE_SECONDS + 1)
        with pytest.raises(TrialHeldError):
            trial.acquire()  # it lives on this machine, however old its lease
        os.kill(holder.pid, signal.SIGSTOP)
        time.sleep(0.2)
        assert trial.acquire().number == 2
        os.kill(holder.pid, signal.SIGCONT)
        assert holder.stdout.readline() == "fenced off False\n"
    finally:
        holder.kill()
        holder.wait()
    assert trial.state().attempt == 2


def test_age_goes_by_the_clock_of_the_files(
    trial: TrialDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trial.acquire()
    elsewhere(first)
    now = time.time()
    monkeypatch.setattr(attempt.time, "time", lambda: now + 10 * LEASE_SECONDS)  # ours is wrong
    with pytest.raises(TrialHeldError):
        trial.acquire()


def test_a_lock_whose_owner_was_killed_is_free_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from ablate.rundir import StudyDir\n"
        "with StudyDir(Path(sys.argv[1])).lock(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / ".manifest.lock").exists()
    started = time.monotonic()
    with StudyDir(tmp_path).lock(5.0):
        pass
    assert time.monotonic() - started < 2
