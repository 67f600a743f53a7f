"""A curve is the same from metrics.parquet and from the logs of attempts, however they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ablate.analysis.beside import beside
from ablate.analysis.recorded import _quickly, _row_by_row, read_curve
from ablate.rundir import StudyDir, TrialDir


def trial_of(path: Path, first: str, second: str = "", resumed: int = 2) -> TrialDir:
    """Two attempts; the second went on from a step of the first."""
    trial = StudyDir(path).trial("a-s0-00000000")
    for number, text in enumerate(filter(None, (first, second)), 1):
        folder = trial.path / "attempts" / str(number)
        folder.mkdir(parents=True)
        record = {"resumed": {"attempt": 1, "step": resumed}} if number > 1 else {}
        (folder / "attempt.json").write_text(json.dumps(record))
        (folder / "metrics.jsonl").write_text(text)
    return trial


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


ROWS = [{"step": s, "train/loss": 1 / s, "arm": 9} for s in (1, 2, 3)]
LOGS = {
    "plain": (lines(*ROWS), ""),
    "resumed, and steps of the first beyond it": (
        lines(*ROWS),
        lines({"step": 3, "train/loss": 7}, {"step": 4, "train/loss": 8.5, "val/loss": 1.0}),
    ),
    "measured before the first step": (lines({"step": 0, "val/loss": 5.0}, *ROWS), ""),
    "torn at the end": (lines(*ROWS) + '{"step": 4, "train/lo', ""),
    "whole without a newline": (lines(*ROWS) + '{"step": 4, "train/loss": 0.1}', ""),
    "not a number": (lines(*ROWS, {"step": 4, "train/loss": float("nan")}), ""),
    "infinite": (lines(*ROWS, {"step": 4, "train/loss": float("inf")}), ""),
    "a whole number among fractions": (lines(*ROWS, {"step": 4, "train/loss": 3}), ""),
    "null, and what comes late": (lines(*ROWS, {"step": 4, "train/loss": None, "x": 1}), ""),
    "torn in the middle": (lines(*ROWS) + '{"step"\n' + lines({"step": 4, "train/loss": 2.0}), ""),
    "text": (lines(*ROWS, {"step": 4, "said": "2025-01-02 03:04:05"}), ""),
    "truth values": (lines({"step": 1, "ok": True}), ""),
    "a step that is none": (lines(*ROWS, {"step": 2.5, "train/loss": 1.0}), ""),
    "empty": ("\n", ""),
}


@pytest.mark.parametrize("name", LOGS)
def test_both_readers_of_a_log_say_the_same(tmp_path: Path, name: str) -> None:
    trial = trial_of(tmp_path, *LOGS[name])
    slow, fast = _row_by_row(trial), _quickly(trial)
    whole = read_curve(trial, ended=True).table
    assert whole.column_names == slow.column_names
    for column in slow.column_names:
        assert repr(whole.column(column).to_numpy()) == repr(slow.column(column).to_numpy())
    plain = name in list(LOGS)[:9]
    assert (fast is not None) == plain


def test_metrics_parquet_comes_first_and_a_damaged_one_is_replaced_by_the_logs(
    tmp_path: Path,
) -> None:
    trial = trial_of(tmp_path, LOGS["plain"][0])
    assert read_curve(trial, ended=True).table.num_rows == 3
    pq.write_table(pa.table({"step": [1], "x": [2.0], "seed": [0]}), trial.metrics_path)
    made = read_curve(trial, ended=True, wanted=["x"])
    assert (made.table.column_names, made.names) == (["x"], ["step", "x"])
    assert read_curve(trial, ended=False).table.num_rows == 3  # not final: an attempt may go on
    trial.metrics_path.write_bytes(b"PAR1 and no more")
    assert read_curve(trial, ended=True).table.num_rows == 3


@pytest.mark.parametrize("cores", [1, 2])
def test_work_beside_is_done_when_the_block_ends(
    tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ablate.analysis.beside._cores", lambda: cores)
    with beside(lambda: (tmp_path / "made").write_text(str(os.getpid()))):
        pass
    assert (tmp_path / "made").read_text().isdigit()
    assert ((tmp_path / "made").read_text() == str(os.getpid())) == (cores == 1)


@pytest.mark.parametrize("cores", [1, 2])
def test_an_error_beside_is_shown_and_one_of_the_block_comes_first(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ablate.analysis.beside._cores", lambda: cores)
    with pytest.raises(ZeroDivisionError), beside(lambda: 1 / 0):
        pass
    with pytest.raises(KeyError), beside(lambda: 1 / 0):
        raise KeyError
