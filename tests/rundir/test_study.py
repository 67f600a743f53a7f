"""A study's folder: one writer of the manifest at a time, found by name or path."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from ablate.errors import StudyError
from ablate.rundir import (
    StudyDir,
    append_lines,
    find_study,
    list_studies,
    read_jsonl,
    write_atomic,
)


def add_many(path: Path, who: int) -> None:
    study = StudyDir(path)
    for i in range(10):
        with study.lock():
            manifest = study.manifest() if study.exists() else {"schema": 1, "trials": []}
            manifest["trials"].append({"id": f"{who}-{i}", "arm": "a"})
            study.write_manifest(manifest)


def test_writers_of_the_manifest_lose_nothing(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=add_many, args=(tmp_path / "s", who)) for who in range(4)]
    for p in processes:
        p.start()
    for p in processes:
        p.join(30)
        assert p.exitcode == 0
    ids = [t["id"] for t in StudyDir(tmp_path / "s").manifest()["trials"]]
    assert sorted(ids) == sorted(f"{who}-{i}" for who in range(4) for i in range(10))


@pytest.mark.parametrize("when", [1, 4_000_000_000])
def test_the_lock_of_a_dead_owner_expires(tmp_path: Path, when: int) -> None:
    """Also where its clock was years ahead."""
    study = StudyDir(tmp_path)
    lock = tmp_path / ".manifest.lock"
    lock.touch()
    os.utime(lock, (when, when))
    with study.lock(timeout=5):
        assert lock.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"a\.json"):
        write_atomic(tmp_path / "a.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_a_living_owners_lock_is_respected(tmp_path: Path) -> None:
    study = StudyDir(tmp_path)
    with study.lock(), pytest.raises(StudyError, match="held by another process"), study.lock(0.3):
        pass


def test_a_study_is_found_by_name_and_by_path_and_a_miss_names_those_that_exist(
    tmp_path: Path,
) -> None:
    StudyDir(tmp_path / "hello").write_manifest({"schema": 1})
    assert find_study("hello", tmp_path).path == tmp_path / "hello"
    assert find_study(str(tmp_path / "hello")).name == "hello"
    with pytest.raises(StudyError, match="Studies there: hello"):
        find_study("helo", tmp_path)
    assert [s.name for s in list_studies(tmp_path)] == ["hello"]


@pytest.mark.parametrize("text", ["", "{", '{"schema": 99}'])
def test_a_damaged_or_newer_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StudyError):
        StudyDir(tmp_path).manifest()


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "value",
    [0.1 + 0.2, 5e-324, 1.7976931348623157e308, math.nan, math.inf, None, "null", "\u2028 \udcff",
     2**70, {"a": [1, math.nan]}, np.float64(0.1)],
)  # fmt: skip
def test_a_line_says_what_it_was_given(tmp_path: Path, value: object) -> None:
    """Whichever library writes it."""
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    append_lines(fd, [{"step": 1, "value": value}, {"step": 2}])
    append_lines(fd, [])
    os.close(fd)
    first, second = read_jsonl(tmp_path / "log")
    assert second == {"step": 2}
    assert repr(first["value"]) == repr(json.loads(json.dumps(value)))


def test_lines_that_the_disk_takes_in_parts_are_whole(tmp_path: Path, monkeypatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    append_lines(fd, [{"step": n} for n in range(9)])
    os.close(fd)
    assert [r["step"] for r in read_jsonl(tmp_path / "log")] == list(range(9))


def test_a_torn_line_is_skipped_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"st\n{"step": 2}\n[3]\n{"step": NaN}\n{"ste')
    assert [str(r["step"]) for r in read_jsonl(path)] == ["1", "2", "nan"]
    assert list(read_jsonl(tmp_path / "absent")) == []
