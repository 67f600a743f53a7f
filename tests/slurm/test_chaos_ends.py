"""The chaos script itself comes to an end where the trials never do; no cluster is needed."""

from __future__ import annotations

import random
import types
from pathlib import Path

import chaos_faults
import pytest
from chaos_faults import IDLE, Faults
from fake_node import make_study


class EmptyBox:
    """A cluster that has forgotten everything."""

    def administer(self) -> None: ...
    def in_queue(self) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    fake = types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(chaos_faults, "time", fake)
    return now


def faults(folder: Path, clock: list[float], said: list[str], deadline: float) -> Faults:
    study = make_study(folder / "s", {"a": {}})
    made = Faults(EmptyBox(), study, random.Random(0), said.append, 15.0, 12, deadline)  # type: ignore[arg-type]
    made.alive = clock[0]
    return made


def test_faults_end_soon_after_nothing_runs_any_more(tmp_path: Path, clock: list[float]) -> None:
    said: list[str] = []
    faults(tmp_path, clock, said, 1e9).run()
    assert IDLE < clock[0] - 1000.0 < IDLE + 60
    assert "nothing has run for 400 s" in said[0]


def test_faults_end_when_their_time_is_up(tmp_path: Path, clock: list[float]) -> None:
    said: list[str] = []
    faults(tmp_path, clock, said, 1100.0).run()
    assert 100.0 < clock[0] - 1000.0 < 130.0
    assert "the time is up" in said[0]
