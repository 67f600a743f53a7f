"""A damaged attempt.json: its trial goes on, nothing recorded is lost, no step is there twice."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ablate.errors import StudyError
from ablate.rundir import Attempt, State, TrialDir, summary_damage, write_summary
from ablate.rundir.attempt_record import KINDS, read_record

DAMAGES = {
    "truncated": '{"host": "n1", "pi',
    "empty": "",
    "null": "null",
    "a list": "[1]",
    "bytes": "\udcff",
    "nested without end": "[" * 100_000,
    "resumed is a number": '{"resumed": 5}',
    "resumed at no step": '{"resumed": {"attempt": 1, "step": "x"}}',
    "resumed from true": '{"resumed": {"attempt": true, "step": 3}}',
    "pid is text": '{"pid": "12"}',
    "seats are text": '{"seats": "abc"}',
    "a folder": None,
    "missing": None,
}


def spoil(path: Path, how: str) -> None:
    path.unlink()
    if how == "a folder":
        path.mkdir()
        (path / "kept").write_text("by somebody")
    elif (text := DAMAGES[how]) is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))


def rows_of(attempt: Attempt, steps: range, event: dict[str, Any]) -> None:
    attempt.append("events.jsonl", event)
    for step in steps:
        attempt.append("metrics.jsonl", {"step": step, "by": attempt.number})


def thrice(path: Path) -> TrialDir:
    """Attempts that did 1 to 10, 6 to 8 (from step 5), and 7 to 12 (from step 6 of the second)."""
    trial = TrialDir(path / "s" / "trials" / "arm-s0-12345678")
    trial.create({"seed": 0}, 12)
    starts = [(range(1, 11), 0, 0), (range(6, 9), 1, 5), (range(7, 13), 2, 6)]
    for steps, before, at in starts:
        attempt = trial.acquire()
        event: dict[str, Any] = {"step": 0, "kind": "start"}
        if before:
            attempt.resumed_from(before, at)
            event = {"step": at + 1, "kind": "resume", "resumed": before}
        rows_of(attempt, steps, {**event, "stacked": 2, "seats": ["a", "b"]})
        attempt.release(State(status="preempted", step=steps[-1], steps=12))
    return trial


def counted(trial: TrialDir) -> list[tuple[int, int]]:
    return [(row["step"], row["by"]) for row in trial.stitched()]


@pytest.mark.parametrize("events", [True, False], ids=["events", "rows alone"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("how", DAMAGES)
def test_no_row_is_lost_and_none_is_there_twice(
    tmp_path: Path, how: str, number: int, events: bool
) -> None:
    trial = thrice(tmp_path)
    whole = counted(trial)
    assert whole == [(s, 1 if s <= 5 else 2 if s == 6 else 3) for s in range(1, 13)]
    attempt = trial.attempts()[number - 1]
    record = attempt.record()
    spoil(attempt.path / "attempt.json", how)
    if not events:
        (attempt.path / "events.jsonl").unlink()
    assert "attempt.json is" in (attempt.damage() or "")
    assert "`ablate retry s`" in (trial.record_damage() or "")
    assert counted(trial) == whole
    assert attempt.record().get("resumed") == record["resumed"]
    assert attempt.record().get("seats") == (["a", "b"] if events else None)
    following = trial.acquire()
    assert following.number == 4, "it can be run again"
    following.resumed_from(3, 12)
    assert counted(trial) == whole


@pytest.mark.parametrize("how", DAMAGES)
def test_mended_it_is_whole_and_the_old_file_is_kept(tmp_path: Path, how: str) -> None:
    trial = thrice(tmp_path)
    whole, attempt = counted(trial), trial.attempts()[1]
    path = attempt.path / "attempt.json"
    assert attempt.mend() is None
    for again in ("", "-2"):
        spoil(path, how)
        before = path.read_bytes() if path.is_file() else None
        assert "it began after step 5" in (attempt.mend() or "")
        kept = path.with_name(f"attempt.json.damaged{again}")
        if before is not None:
            assert kept.read_bytes() == before
        elif how == "a folder":
            assert (kept / "kept").read_text() == "by somebody"
        assert attempt.damage() is None
        assert read_record(attempt.path)["resumed"] == {"attempt": 1, "step": 5}
        assert counted(trial) == whole
    assert {p.name for p in attempt.path.iterdir() if p.name.startswith(".")} == set()


def test_an_attempt_that_was_made_this_moment_has_no_damage(tmp_path: Path) -> None:
    """Its folder is there before its file is."""
    trial = TrialDir(tmp_path / "arm-s0-12345678")
    trial.create({"seed": 0}, 1)
    (trial.path / "attempts" / "1").mkdir(parents=True)
    assert trial.record_damage() is None
    assert trial.attempts()[0].record().get("resumed") is None


def test_whoever_runs_it_knows_itself_and_writes_it_whole(tmp_path: Path) -> None:
    trial = TrialDir(tmp_path / "arm-s0-12345678")
    trial.create({"seed": 0}, 1)
    attempt = trial.acquire(job_id="7", node="n1")
    record = attempt.record()
    spoil(attempt.path / "attempt.json", "truncated")
    attempt.note(peak_memory=3)
    assert trial.attempts()[0].record() == {**record, "peak_memory": 3}
    assert record.keys() - {"schema"} <= KINDS.keys(), "what is written is checked"


def test_its_time_is_that_of_its_log(tmp_path: Path) -> None:
    """A budget counts its hours."""
    attempt = thrice(tmp_path).attempts()[0]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_800_000_000))
    attempt.log_path.write_text(f"{stamp},123 INFO attempt 1 of arm-s0-12345678, process 5\nmore\n")
    spoil(attempt.path / "attempt.json", "empty")
    assert attempt.record()["time"] == 1_800_000_000


def test_the_seal_of_a_summary_goes_with_it(tmp_path: Path) -> None:
    trial = thrice(tmp_path)
    newest = trial.attempts()[-1]
    write_summary(newest, {"train/loss": 1.0})
    assert summary_damage(trial) is None
    spoil(newest.path / "attempt.json", "a folder")
    assert "summary.json cannot be checked" in (summary_damage(trial) or "")
    assert "summary.json has no seal" in (newest.mend() or "")
    assert summary_damage(trial) is None, "as one that an older version wrote"


def test_a_record_that_is_not_one_is_named_with_its_value(tmp_path: Path) -> None:
    attempt = thrice(tmp_path).attempts()[0]
    (attempt.path / "attempt.json").write_text(json.dumps({"restart": "often", "host": 3}))
    with pytest.raises(StudyError, match=r"host='3', restart='often'"):
        read_record(attempt.path)
    shutil.rmtree(attempt.path)
    assert read_record(attempt.path) == {}
