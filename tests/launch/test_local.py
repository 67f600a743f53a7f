"""A study on this machine, killed and stopped in every way: nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as parquet
import pytest
from fake_training import make_study, make_trial

from ablate.errors import TrialError
from ablate.launch.forks import visible_gpu
from ablate.launch.local import run_missing, workers_for
from ablate.launch.pool import Pool
from ablate.rundir import State, StudyDir, TrialDir, names

SCRIPT = Path(__file__).parent / "fake_launch.py"


def launch(study: StudyDir, workers: int = 2) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), str(study.path), str(workers)]
    return subprocess.Popen(command, start_new_session=True)


def statuses(study: StudyDir) -> dict[str, int]:
    found = [t.live_state().status for t in study.trials()]
    return {s: found.count(s) for s in sorted(set(found))}


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def slow_study(path: Path, trials: int = 4, steps: int = 60) -> StudyDir:
    made = [make_trial(path, f"arm{i}", steps=steps, pause=0.02) for i in range(trials)]
    return make_study(path, made)


def some_progress(study: StudyDir) -> bool:
    rows = [t.latest_row() for t in study.trials()]
    return sum(bool(r and r["step"] >= 12) for r in rows) >= 2


def assert_whole(study: StudyDir, steps: int = 60) -> None:
    assert statuses(study) == {"done": len(study.trials())}
    for trial in study.trials():
        rows = parquet.read_table(trial.metrics_path)
        assert rows["step"].to_pylist() == list(range(1, steps + 1))


class Seen:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.ends: list[tuple[str, str]] = []

    def started(self, trial: TrialDir) -> None:
        self.starts.append(trial.id)

    def ended(self, trial: TrialDir, state: State) -> None:
        self.ends.append((trial.id, state.status))

    def waiting(self, trials: object) -> None: ...
    def stopping(self, reason: str) -> None: ...
    def tick(self, running: object) -> None: ...


def run_here(study: StudyDir, **options: object) -> Seen:
    seen = Seen()
    with Pool("fake_training:run") as pool:
        assert run_missing(study.trials(), pool, workers=2, watcher=seen, **options) is None
    return seen


def test_a_failing_a_diverging_and_a_killed_trial_stop_no_other(tmp_path: Path) -> None:
    trials = [
        make_trial(tmp_path, "fails", fail_at=3, how="code"),
        make_trial(tmp_path, "diverges", fail_at=3, how="diverged"),
        make_trial(tmp_path, "killed", kill_at=15),
        make_trial(tmp_path, "good"),
        make_trial(tmp_path, "good2"),
    ]
    study = make_study(tmp_path, trials)
    run_here(study)
    assert statuses(study) == {"diverged": 1, "done": 3, "failed": 1}
    assert trials[2].state().attempt == 2, "what the machine killed is started again"


def test_a_trial_that_is_killed_every_time_is_given_up(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, "cursed", kill_at=5, always=True)
    study = make_study(tmp_path, [trial, make_trial(tmp_path, "good")])
    run_here(study)
    assert statuses(study) == {"done": 1, "preempted": 1}
    assert len(trial.attempts()) == 3


@pytest.mark.parametrize("free", [0, 2**30])
def test_a_full_disk_is_said_where_the_trial_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """It cannot write its state then, nor its log."""
    trial = make_trial(tmp_path, "full", fail_at=3, how="crash", always=True)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    said: list[str | None] = []

    class Reasons(Seen):
        def ended(self, trial: TrialDir, state: State) -> None:
            said.append(state.reason)

    with Pool("fake_training:run") as pool:
        run_missing([trial], pool, workers=1, watcher=Reasons())
    assert [("disk" in (reason or "")) for reason in said] == [free == 0]


def test_launching_again_starts_nothing_that_has_ended(tmp_path: Path) -> None:
    trials = [make_trial(tmp_path, "a"), make_trial(tmp_path, "b", fail_at=3)]
    study = make_study(tmp_path, trials)
    assert len(run_here(study).starts) == 2
    assert run_here(study).starts == []
    assert run_here(study, again=("failed",)).starts == [trials[1].id]
    assert statuses(study) == {"done": 2}


def test_what_a_worker_prints_lies_in_its_attempts_log(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, fail_at=3)
    run_here(make_study(tmp_path, [trial]))
    assert "ZeroDivisionError" in trial.newest_attempt().log_path.read_text()


@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_stopped_launch_saves_every_trial_and_the_next_one_finishes(
    tmp_path: Path, number: signal.Signals, group: bool
) -> None:
    study = slow_study(tmp_path)
    process = launch(study)
    wait_for(lambda: some_progress(study))
    (os.killpg if group else os.kill)(process.pid, number)
    assert process.wait(20) == 130
    assert statuses(study) == {"pending": 2, "preempted": 2}
    for trial in study.trials():
        state = trial.state()
        if state.status == "preempted":
            assert trial.newest_checkpoint()[1] == state.step > 0
            assert state.outcome == "preempted"
    assert launch(study).wait(30) == 0
    assert_whole(study)


def test_when_the_launcher_is_killed_its_trials_save_and_stop(tmp_path: Path) -> None:
    study = slow_study(tmp_path, steps=400)
    process = launch(study)
    wait_for(lambda: some_progress(study))
    process.kill()
    process.wait()
    wait_for(lambda: statuses(study) == {"pending": 2, "preempted": 2}, 10)
    stopped = [t for t in study.trials() if t.state().status == "preempted"]
    assert all(t.newest_checkpoint()[1] == t.state().step for t in stopped)
    wait_for(lambda: not any(alive(t) for t in stopped), 10)


def test_when_the_warm_process_is_killed_its_trials_save_and_stop(tmp_path: Path) -> None:
    study = slow_study(tmp_path, trials=2, steps=400)
    pool = Pool("fake_training:run")
    for trial in study.trials():
        pool.start([trial])
    wait_for(lambda: some_progress(study))
    os.kill(pool.pid, signal.SIGKILL)
    wait_for(lambda: statuses(study) == {"preempted": 2}, 10)
    reasons = {t.live_state().reason for t in study.trials()}
    assert reasons == {"the launcher is gone"}
    pool.close()


def alive(trial: TrialDir) -> bool:
    attempt = trial.newest_attempt()
    return attempt is not None and attempt.is_alive()


def test_two_launches_at_once_run_nothing_twice_and_both_wait_for_the_end(tmp_path: Path) -> None:
    study = slow_study(tmp_path, trials=6, steps=20)
    processes = [launch(study), launch(study)]
    assert [p.wait(40) for p in processes] == [0, 0]
    assert_whole(study, 20)
    assert [len(t.attempts()) for t in study.trials()] == [1] * 6


def test_a_launch_takes_over_the_trials_of_one_that_dies(tmp_path: Path) -> None:
    study = slow_study(tmp_path, trials=2, steps=150)
    first = launch(study)
    wait_for(lambda: some_progress(study))
    second = launch(study)
    time.sleep(1)
    first.kill()
    first.wait()
    assert second.wait(40) == 0
    assert_whole(study, 150)


def test_workers_share_out_the_cores_or_the_gpus() -> None:
    assert workers_for(5, 1, 0) == 5
    assert workers_for(None, 1, 8) == 8
    assert workers_for(None, 10**6, 0) == 1


def test_a_worker_gets_one_of_the_gpus_that_the_launcher_may_use() -> None:
    assert visible_gpu(1, {}) == "1"
    assert visible_gpu(1, {"CUDA_VISIBLE_DEVICES": "4,6"}) == "6"


def test_a_dead_trial_whose_lease_lies_in_the_future_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine ran it, whose clock (and the files') was an hour fast until it died."""
    monkeypatch.setenv("ABLATE_LEASE_SECONDS", "6")
    monkeypatch.setattr(names, "LEASE_SECONDS", 6.0)
    trial = make_trial(tmp_path, steps=5)
    study, dead = make_study(tmp_path, [trial]), trial.acquire()
    record = json.loads((dead.path / names.ATTEMPT).read_text())
    (dead.path / names.ATTEMPT).write_text(json.dumps({**record, "host": "elsewhere"}))
    ahead = time.time() + 3600
    os.utime(dead.path / names.LEASE, (ahead, ahead))
    with Pool("fake_training:run") as pool:
        run_missing(study.trials(), pool, workers=1, patience=20.0)
    assert statuses(study) == {"done": 1}
    assert trial.state().attempt == 2


def test_a_launch_whose_warm_process_is_killed_says_so(tmp_path: Path) -> None:
    """As a machine does that has no memory left: no defect of ours, and nothing is lost."""
    study = slow_study(tmp_path, trials=2, steps=60)
    with Pool("fake_training:run") as pool:

        class Killer(Seen):
            def tick(self, running: object) -> None:
                if some_progress(study):
                    os.kill(pool.pid, signal.SIGKILL)

        with pytest.raises(TrialError, match=r"was killed \(SIGKILL"):
            run_missing(study.trials(), pool, workers=2, watcher=Killer())
    wait_for(lambda: statuses(study) == {"preempted": 2}, 10)
    assert launch(study).wait(40) == 0
    assert_whole(study)


@pytest.mark.parametrize("what", ["study", "trial"])
def test_what_is_deleted_while_a_launch_runs_stays_deleted(tmp_path: Path, what: str) -> None:
    """The other trials go on."""
    study = slow_study(tmp_path / "s", trials=4, steps=30)
    last = study.trials()[-1]

    class Deleter(Seen):
        def tick(self, running: object) -> None:
            if some_progress(study):
                doomed = study.path if what == "study" else last.path
                shutil.rmtree(doomed.rename(tmp_path / "doomed"), ignore_errors=True)
                self.tick = lambda running: None  # type: ignore[method-assign]

    seen = Deleter()
    with Pool("fake_training:run") as pool:
        run_missing(study.trials(), pool, workers=2, watcher=seen)
    assert not last.path.exists()
    if what == "study":
        assert not study.path.exists()
    else:
        assert [t.live_state().status for t in study.trials()[:-1]] == ["done"] * 3
