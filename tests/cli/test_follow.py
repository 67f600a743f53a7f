"""`ablate logs -f` shows every line once, also those written while it does not look."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli import logs

sys.path.insert(0, str(Path(__file__).parent))
from written import make_study, start

Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("words", [["mine", "arm0-s0"], ["mine"]])
def test_the_last_lines_of_a_trial_that_ends_between_two_looks(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (trial,) = make_study(tmp_path / "runs" / "mine", 1, 1).trials()
    attempt, look = start(trial, 5), logs.Followed.look

    def then_it_ends(followed: logs.Followed) -> bool:
        goes_on = look(followed)
        if trial.state().status == "running":
            with attempt.log_path.open("a") as file:
                file.write("its last words\n")
            attempt.release(trial.state().replace(status="done", outcome="done"))
        return goes_on

    monkeypatch.setattr(logs.Followed, "look", then_it_ends)
    code, out, _ = call("logs", *words, "-f")
    assert code == 0
    assert out.count("its last words") == 1


def test_tail_counts_the_bytes_that_are_there(call: Call, tmp_path: Path) -> None:
    """Also of a log that is no UTF-8."""
    (trial,) = make_study(tmp_path / "runs" / "mine", 1, 1).trials()
    attempt = start(trial, 5)
    attempt.log_path.write_bytes(b"\xff\xfe\xff first\r\nsecond\nthird \xff\n")
    attempt.release(trial.state().replace(status="done", outcome="done"))
    code, out, _ = call("logs", "mine", "arm0-s0", "-f", "--tail", "2")
    assert (code, out) == (0, "second\nthird \ufffd\n")
