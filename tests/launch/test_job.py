"""One trial's way to each of its ends, with a training that does as it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from fake_training import make_trial, run

from ablate.config.fingerprint import trial_id
from ablate.config.sources import SOURCES, sources
from ablate.errors import TrialEndedError
from ablate.launch import job
from ablate.launch import stitch as stitching
from ablate.launch.cancelling import mark
from ablate.launch.job import FencedOffError, run_job
from ablate.rundir import Attempt, StudyDir, TrialDir, write_summary


def steps_in_parquet(trial: TrialDir) -> list[int]:
    return parquet.read_table(trial.metrics_path)["step"].to_pylist()


def log_of(trial: TrialDir) -> str:
    return trial.newest_attempt().log_path.read_text()


def test_a_trial_that_is_done_leaves_its_record_and_its_summary(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, steps=20)
    state = run_job(trial, run=run)
    assert (state.status, state.outcome, state.step, state.attempt) == ("done", "done", 20, 1)
    assert steps_in_parquet(trial) == list(range(1, 21))
    assert trial.summary() == {"val/bpb": 0.25, "steps": 20}
    table = parquet.read_table(trial.metrics_path)
    assert str(table.schema.field("step").type) == "int64"
    assert table["val/bpb"].to_pylist() == [None] * 19 + [0.25]


def test_no_power_cut_leaves_a_trial_done_without_its_record_and_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes nothing before it must: a file's bytes with fsync of the file, its name
    with fsync of the folder.
    """
    loose: set[str] = set()
    synced: set[int] = set()
    found: list[set[str]] = []
    real_replace, real_fsync = os.replace, os.fsync

    def fsync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.add(os.fstat(fd).st_ino)
        if path.is_dir():
            loose.difference_update({name for name in loose if Path(name).parent == path})
        real_fsync(fd)

    def replace(source: str | Path, target: str | Path) -> None:
        if Path(target).name == "state.json" and '"done"' in Path(source).read_text():
            found.append(set(loose))
        whole = os.stat(source).st_ino in synced
        loose.add(str(target) if whole else f"{target}/its bytes")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    trial = make_trial(tmp_path, steps=20)
    loose.clear()
    assert run_job(trial, run=run).status == "done"
    assert len(found) == 2, "of the attempt, and of the trial"
    assert not {n for n in found[0] if "state.json" not in n}


@pytest.mark.parametrize(
    ("how", "status", "outcome"),
    [
        ("code", "failed", "code"),
        ("config", "failed", "config"),
        ("oom", "failed", "oom"),
        ("memory", "failed", "oom"),
        ("node", "failed", "node"),
        ("diverged", "diverged", "diverged"),
    ],
)
def test_every_bad_end_has_its_class_its_reason_and_its_record(
    tmp_path: Path, how: str, status: str, outcome: str
) -> None:
    trial = make_trial(tmp_path, fail_at=7, how=how)
    state = run_job(trial, run=run)
    assert (state.status, state.outcome, state.step) == (status, outcome, 7)
    assert state.reason
    assert "\n" not in state.reason
    assert "Traceback" in log_of(trial)
    assert steps_in_parquet(trial) == list(range(1, 8))
    assert trial.summary() is None


def test_the_reason_of_a_failure_is_the_exceptions_last_line(tmp_path: Path) -> None:
    state = run_job(make_trial(tmp_path, fail_at=3), run=run)
    assert state.reason == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_stops_at_the_next_step_with_a_checkpoint_and_the_trial_goes_on_from_there(
    tmp_path: Path, number: signal.Signals
) -> None:
    trial = make_trial(tmp_path, steps=30, signal_at=13, signal=int(number))
    handler = signal.getsignal(number)
    state = run_job(trial, run=run)
    assert (state.status, state.outcome, state.step) == ("preempted", "preempted", 13)
    assert number.name in state.reason
    assert signal.getsignal(number) == handler
    assert trial.newest_checkpoint()[1] == 13
    state = run_job(trial, run=run)
    assert (state.status, state.attempt) == ("done", 2)
    assert steps_in_parquet(trial) == list(range(1, 31))


def test_a_cancelled_trial_is_cancelled_by_the_signal_already(tmp_path: Path) -> None:
    """Which comes before the heartbeat has seen the mark."""

    def prepare_for_ever(attempt: Attempt, *_: object, **__: object) -> None:
        mark(attempt.trial)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    def ended_by(way: object, trial: TrialDir) -> tuple[str, str | None, str | None]:
        state = run_job(trial, run=way)
        return state.status, state.outcome, state.reason

    told = ("cancelled", "cancelled", "as ablate cancel asked")
    assert ended_by(prepare_for_ever, make_trial(tmp_path / "before")) == told
    trial = make_trial(tmp_path / "within", steps=30, signal_at=13, signal=int(signal.SIGTERM))

    def marked(attempt: Attempt, *words: object, **more: object) -> object:
        mark(attempt.trial)
        return run(attempt, *words, **more)

    assert ended_by(marked, trial) == told


def test_before_the_first_step_a_signal_interrupts_at_once(tmp_path: Path) -> None:
    def prepare_for_ever(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)

    began = time.monotonic()
    state = run_job(make_trial(tmp_path), run=prepare_for_ever)
    assert state.status == "preempted"
    assert time.monotonic() - began < 5


def test_a_second_signal_does_not_wait_for_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ablate.launch.stop.ECHO_SECONDS", 0.1)

    def long_step(attempt: object, config: object, *, should_stop, on_row) -> None:
        should_stop()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(20)

    began = time.monotonic()
    assert run_job(make_trial(tmp_path), run=long_step).status == "preempted"
    assert time.monotonic() - began < 5


def test_an_echo_of_the_first_signal_is_no_second_one(tmp_path: Path) -> None:
    def step(attempt: object, config: object, *, should_stop, on_row):
        should_stop()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        return run(attempt, config, should_stop=should_stop, on_row=on_row)

    trial = make_trial(tmp_path)
    assert run_job(trial, run=step).step == 1
    assert trial.newest_checkpoint()[1] == 1


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    trial = make_trial(tmp_path)
    run_job(trial, run=run)
    before = {p: p.stat().st_mtime_ns for p in trial.path.rglob("*")}
    with pytest.raises(TrialEndedError):
        run_job(trial, run=run)
    assert {p: p.stat().st_mtime_ns for p in trial.path.rglob("*")} == before


def test_a_failed_trial_is_run_again_when_it_is_asked_for(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, steps=20, fail_at=15)
    run_job(trial, run=run)
    state = run_job(trial, run=run, again=("failed",))
    assert (state.status, state.attempt, state.reason) == ("done", 2, None)
    assert steps_in_parquet(trial) == list(range(1, 21))


def test_a_configuration_that_was_edited_is_refused(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, steps=20)
    path = trial.path / "config.yaml"
    path.write_text(path.read_text().replace("steps: 20", "steps: 2"))
    state = run_job(trial, run=run)
    assert (state.status, state.outcome) == ("failed", "config")
    assert "was changed" in state.reason


def test_an_attempt_that_is_fenced_off_stops_and_writes_nothing_outside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "BEAT_SECONDS", 0.05)
    trial = make_trial(tmp_path, steps=400, pause=0.01)

    def take_over() -> None:
        while trial.latest_row() is None:
            time.sleep(0.01)
        (trial.path / "attempts" / "2").mkdir()

    threading.Thread(target=take_over).start()
    with pytest.raises(FencedOffError):
        run_job(trial, run=run)
    assert trial.state().status == "running"
    assert not trial.metrics_path.exists()
    assert not trial.summary_path.exists()
    assert trial.latest_row()["step"] < 400


@pytest.mark.parametrize("takes_over", ["before the summary", "while it is written"])
def test_one_that_was_away_at_its_end_replaces_nothing_of_the_newer_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_over: str
) -> None:
    """A node that comes back behind the last look at who runs the trial."""
    trial = make_trial(tmp_path, steps=20)
    newer = {"val/bpb": 0.5}

    def be_away() -> None:
        path = trial.path / "attempts" / "2"
        path.mkdir()
        second = Attempt(trial, 2)
        second.append("metrics.jsonl", {"step": 1, "train/loss": 7.0})
        stitching.stitch(trial)
        assert write_summary(second, newer)

    if takes_over == "before the summary":
        monkeypatch.setattr(job, "stitch", lambda *_: be_away())
    else:
        to_table = stitching.to_table

        def slow(rows: object) -> object:
            table = to_table(rows)
            if not trial.summary_path.exists():
                monkeypatch.setattr(stitching, "to_table", to_table)
                be_away()
            return table

        monkeypatch.setattr(stitching, "to_table", slow)
    with pytest.raises(FencedOffError):
        run_job(trial, run=run)
    assert trial.summary() == newer
    assert steps_in_parquet(trial) == [1]


def test_the_state_follows_a_running_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BEAT_SECONDS", 0.05)
    trial, seen = make_trial(tmp_path, steps=60, pause=0.01), set()

    def look(row: dict) -> None:
        state = trial.state()
        seen.add((state.status, state.step))
        assert state.steps == 60

    run_job(trial, run=run, on_row=look)
    assert {status for status, _ in seen} == {"running"}
    assert len(seen) > 5


def test_nan_and_infinity_survive_the_record(tmp_path: Path) -> None:
    def odd(attempt, config, *, should_stop, on_row):
        attempt.append("metrics.jsonl", {"step": 1, "train/loss": float("nan"), "lr": 1})
        attempt.append("metrics.jsonl", {"step": 2, "train/loss": float("inf"), "lr": 0.5})
        attempt.append("events.jsonl", {"step": 1, "kind": "nonfinite"})
        return run(attempt, config, should_stop=should_stop, on_row=on_row)

    trial = make_trial(tmp_path, steps=2)
    run_job(trial, run=odd)
    values = parquet.read_table(trial.metrics_path)["train/loss"].to_pylist()
    assert str(values[:2]) == "[nan, inf]" or str(values[0]) == "nan"
    assert [json.loads(x)["kind"] for x in trial.events_path.read_text().splitlines()] == [
        "nonfinite"
    ]


def test_what_a_finished_trial_leaves_is_on_the_disk_before_it_says_that_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut then takes none of it; nobody would write it again."""
    trial = make_trial(tmp_path, steps=5)
    synced, moved, fsync, replace = set[int](), dict[str, bool](), os.fsync, os.replace

    def keep(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    def move(old: Path, new: Path) -> None:
        moved[Path(new).name] = os.stat(old).st_ino in synced
        replace(old, new)

    monkeypatch.setattr(os, "fsync", keep)
    monkeypatch.setattr(os, "replace", move)
    assert run_job(trial, run=run).status == "done"
    for name in ("metrics.parquet", "events.jsonl", "summary.json", "state.json"):
        assert moved[name], name


def test_the_record_of_a_trial_is_written_without_pandas() -> None:
    """Its import would cost every trial seconds."""
    script = (
        "import sys, math; from ablate.launch.stitch import to_table\n"
        "rows = [{'step': 1, 'a': 1.5}, {'step': 2, 'a': math.nan, 'b': 3}, {'step': 3}]\n"
        "table = to_table(rows); assert 'pandas' not in sys.modules\n"
        "assert table['b'].to_pylist() == [None, 3.0, None]\n"
        "assert [v is None for v in table['a'].to_pylist()] == [False, False, True]\n"
        "assert math.isnan(table['a'][1].as_py()) and table['step'].to_pylist() == [1, 2, 3]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_trial_whose_own_code_was_edited_does_not_go_on_until_the_edit_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "own_clip.py"
    code.write_text("class Clip: ...\n")
    config = {"seed": 0, "train": {"steps": 20}, "clip": {"name": "own_clip:Clip"}}
    config = {**config, "fake": {"signal_at": 12}, SOURCES: sources(config)}
    trial = StudyDir(tmp_path / "study").trial(trial_id("arm", config))
    trial.create(config, 20)
    assert run_job(trial, run=run).status == "preempted"
    code.write_text("class Clip:\n    limit = 2\n")
    state = run_job(trial, run=run)
    assert state.status == "failed"
    assert "clip.name=own_clip:Clip" in (state.reason or "")
    code.write_text("class Clip: ...\n")
    assert run_job(trial, again=("failed",), run=run).status == "done"
    assert steps_in_parquet(trial) == list(range(1, 21))
