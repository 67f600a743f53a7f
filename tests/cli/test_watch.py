"""`watch` and `logs`: what is seen of a study while it runs."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli.overview import study_status
from ablate.cli.watch import Redrawn
from ablate.cli.watching import story
from ablate.errors import DivergedError
from ablate.rundir import State

sys.path.insert(0, str(Path(__file__).parent))
from written import end, make_study, mixed, start

Call = Callable[..., tuple[int, str, str]]


def test_watch_prints_what_changes_and_ends_with_the_study(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 3)
    trials = study.trials()
    end(trials[0])
    attempt = start(trials[1], 5)

    def go_on() -> None:
        time.sleep(0.5)
        attempt.release(trials[1].state().replace(status="done", outcome="done", step=100))
        time.sleep(0.3)
        end(trials[2], "failed", 3, reason="boom")

    thread = threading.Thread(target=go_on)
    thread.start()
    code, out, _ = call("watch", "mine", "--interval", "0.1")
    thread.join()
    assert code == 1
    assert f"{trials[1].id} running" in out
    assert f"{trials[1].id} done" in out
    assert f"{trials[2].id} failed" in out
    assert "boom" in out
    assert out.splitlines()[-1] == "mine: 2 done, 1 failed"


def test_of_a_study_that_has_ended_json_tells_every_trial(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 3)
    for trial, status in zip(study.trials(), ("done", "failed", "done"), strict=True):
        end(trial, status)
    code, out, _ = call("watch", "mine", "--json")
    assert code == 1
    told = [json.loads(line) for line in out.splitlines()]
    assert [t["status"] for t in told] == ["done", "failed", "done"]
    assert told == json.loads(call("status", "mine", "--json")[1])["trials"]
    assert call("watch", "mine")[1].count("\n") == 2, "for people the counts, and what went wrong"


def test_the_help_says_what_json_prints_once(call: Call) -> None:
    out = " ".join(call("watch", "--help")[1].split())
    assert "one JSON object a line" in out
    assert "one JSON object on standard output" not in out


def test_a_divergence_is_said_once(tmp_path: Path) -> None:
    trial = make_study(tmp_path / "mine", 1, 1).trials()[0]
    error = DivergedError(2, "loss nan")
    state = State(status="diverged", step=2, steps=30, reason=str(error))
    assert story(trial, state) == f"{trial.id} diverged at step 2 of 30: loss nan"


def test_what_is_damaged_is_said_once(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 2)
    damaged, other = study.trials()
    end(damaged)
    (damaged.path / "state.json").write_text("{")
    attempt = start(other, 5)
    timer = threading.Timer(
        0.7, lambda: attempt.release(other.state().replace(status="done", outcome="done"))
    )
    timer.start()
    code, _, err = call("watch", "mine", "--interval", "0.1")
    assert code == 1
    assert err.count(f"ablate watch: {damaged.id}: ") == err.count("state.json is damaged") == 1


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e30", "-1"])
def test_an_interval_that_never_ends_is_refused(call: Call, tmp_path: Path, seconds: str) -> None:
    mixed(tmp_path / "runs" / "mine")
    code, out, err = call("watch", "mine", f"--interval={seconds}")
    assert (code, out) == (2, "")
    assert "at most a day" in err


def watch_on_a_terminal(
    tmp_path: Path, environment: dict[str, str], columns: int
) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    environment = {**environment, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    command = [sys.executable, "-m", "ablate", "watch", "mine", "--interval", "0.2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


def read_all(fd: int, until: Callable[[str], bool], seconds: float = 15) -> str:
    """What a terminal shows, until it is enough or the other end is gone."""
    text, deadline = "", time.monotonic() + seconds
    while time.monotonic() < deadline and not until(text):
        if not select.select([fd], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece.decode(errors="replace")
    return text


def test_ctrl_c_stops_the_watching_and_nothing_else(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    study = mixed(tmp_path / "runs" / "mine")
    before = [t.state() for t in study.trials()]
    process, ours = watch_on_a_terminal(tmp_path, environment, 60)
    text = read_all(ours, lambda t: t.count("Ctrl-C stops watching") >= 2)
    assert text.count("\x1b[2K") > 10, "it is redrawn"
    process.send_signal(signal.SIGINT)
    text += read_all(ours, lambda t: False)  # to the end: nobody waits for a reader at its exit
    assert process.wait(10) == 130
    os.close(ours)
    assert "the study goes on" in text
    assert [t.state() for t in study.trials()] == before


def test_a_short_window_says_what_it_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = study_status(mixed(tmp_path / "mine", 9, 3))
    for rows in (10, 24, 60):
        monkeypatch.setattr(
            "shutil.get_terminal_size", lambda rows=rows: os.terminal_size((100, rows))
        )
        Redrawn()(status)
        shown = capsys.readouterr().out.rstrip("\x1b[J").splitlines()
        assert len(shown) <= rows
        text = "\n".join(shown)
        assert text.count("failed") >= 1
        assert ("more lines" in text) or ("more trials" in text) or rows == 60
        assert "more trials: --all" not in text, "which `ablate watch` does not have"


# ---- list and logs


def test_logs_are_found_by_study_trial_path_or_a_part_of_its_name(
    call: Call, tmp_path: Path
) -> None:
    study = mixed(tmp_path / "runs" / "mine")
    trial = study.trials()[0]
    wanted = f"log of {trial.id}\n"
    for words in (["mine", "arm0-s0"], ["mine/arm0-s0"], [str(trial.path)]):
        assert call("logs", *words)[1] == wanted
    failed = study.trials()[1]
    (attempt,) = failed.attempts()
    said = f"==> {attempt.log_path.relative_to(tmp_path)} <==\nlog of {failed.id}\n"
    assert call("logs", "mine")[1].endswith(said), "those that failed, each below its header"
    assert call("logs", "mine", "arm2")[0] == 2
    assert call("logs", "mine", trial.id, "--tail", "0")[1] == ""


def test_logs_are_followed_into_the_next_attempt(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    (trial,) = study.trials()
    attempt = start(trial, 5, job_id="7_0")

    def go_on() -> None:
        time.sleep(0.5)
        with open(attempt.log_path, "a") as file:
            file.write("more\n")
        attempt.release(trial.state().replace(status="preempted", outcome="preempted"))
        time.sleep(0.5)
        second = trial.acquire(job_id="7_0")
        second.log_path.write_text("again\n")
        time.sleep(0.5)
        second.release(trial.state().replace(status="done", outcome="done"))

    thread = threading.Thread(target=go_on)
    thread.start()
    code, out, _ = call("logs", "mine", "arm0", "-f")
    thread.join()
    assert (code, out) == (0, f"log of {trial.id}\nmore\nagain\n")
