"""A pipe, a folder or a loop in the place of a file: nobody waits for it, and it hides no other."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ablate.launch.stitch import stitch
from ablate.rundir import StudyDir, TrialDir

sys.path.insert(0, str(Path(__file__).parent))
from written import end, make_study, start

Call = Callable[..., tuple[int, str, str]]
MAKE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "loop": lambda path: os.symlink(path.name, path),
}
VERBS = {
    "list": [],
    "status": ["s"],
    "watch": ["s"],
    "logs": ["s"],
    "report": ["s", "--metric", "train/loss"],
    "sync": ["s", "--dry-run"],
    "prune": ["s"],
    "cancel": ["s", "--dry-run"],
    "retry": ["s", "--dry-run"],
}


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.analysis.publish.draw", lambda *_: None)


@pytest.fixture(autouse=True)
def _nobody_waits() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError("it waits for the other end of the pipe")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def study(call: Call, tmp_path: Path) -> StudyDir:
    study = make_study(tmp_path / "runs" / "s", arms=1, seeds=3)
    done, failed, _ = study.trials()
    end(done)
    end(failed, "failed", 7, outcome="code", reason="ZeroDivisionError")
    for trial in (done, failed):
        stitch(trial)
    return study


def put(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    MAKE[kind](path)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    "name",
    [
        "state.json", "config.yaml", "summary.json", "events.jsonl", "attempts/1/attempt.json",
        "attempts/1/state.json", "attempts/1/metrics.jsonl", "attempts/1/log", "attempts/1/lease",
    ],
)  # fmt: skip
def test_of_a_trial(study: StudyDir, call: Call, name: str, kind: str) -> None:
    done, failed, pending = study.trials()
    for trial in (done, failed):
        put(trial.path / name, kind)
    start(pending, 5, age=500.0)
    put(pending.path / name, kind)
    for verb, words in VERBS.items():
        if verb != "watch":  # the study has not ended
            code, _, err = call(verb, *words)
            assert code in (0, 1, 2), f"{verb}: {err}"
            assert "Traceback" not in err
    shown = json.loads(call("status", "s", "--json")[1])["trials"]
    assert [t["id"] for t in shown] == [done.id, failed.id, pending.id]


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    "name", ["manifest.json", "launch.json", "data.json", "submissions/1.json", "usage.json"]
)
def test_of_a_study(study: StudyDir, call: Call, tmp_path: Path, name: str, kind: str) -> None:
    make_study(tmp_path / "runs" / "whole", 1, 1)
    (study.path / name).parent.mkdir(exist_ok=True)
    put(study.path / name, kind)
    for verb, words in VERBS.items():
        if verb == "watch" and name != "manifest.json":
            continue
        code, out, err = call(verb, *words)
        assert code in (0, 1, 2), f"{verb}: {err}"
        assert "Traceback" not in err
        if verb == "list":
            assert "whole" in out


def test_a_reader_waits_for_no_pipe(tmp_path: Path) -> None:
    trial = TrialDir(tmp_path / "trials" / "arm-s0-12345678")
    trial.create({"seed": 0}, 10)
    attempt = trial.acquire()
    put(attempt.path / "lease", "pipe")
    record = json.loads((attempt.path / "attempt.json").read_text())
    (attempt.path / "attempt.json").write_text(json.dumps({**record, "host": "elsewhere"}))
    assert attempt.is_alive(), "by the time of its folder"
