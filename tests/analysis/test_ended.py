"""The small files of an ended trial read at once say what they say read one by one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablate.analysis import reading
from ablate.rundir import State, StudyDir, TrialDir, read_ended, write_json, write_summary

END = State(status="done", outcome="done", step=9, steps=9)


def ended(path: Path) -> TrialDir:
    """Two attempts, a sealed summary, two events."""
    trial = StudyDir(path).trial("arm-s0-12345678")
    trial.create({"seed": 0, "train": {"steps": 9}, "model": {"d_model": 8, "bias": None}}, 9)
    first = trial.acquire()
    first.append("metrics.jsonl", {"step": 1})
    first.release(State(status="preempted", step=5, steps=9))
    attempt = trial.acquire()
    attempt.resumed_from(1, 5)
    attempt.append("metrics.jsonl", {"step": 6})
    attempt.append("events.jsonl", {"step": 7, "kind": "spike", "arm": "loss", "at": [1]})
    events = [{"step": 7, "kind": "spike", "arm": "loss", "at": [1]}, {"step": 8, "kind": "end"}]
    trial.events_path.write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")
    write_summary(attempt, {"val/bpb": 1.5, "spikes/events": 1, "time": {"data": 2.0}})
    attempt.release(END)
    manifest = {"schema": 1, "arms": [{"name": "arm"}], "trials": [{"id": trial.id, "arm": "arm"}]}
    write_json(path / "manifest.json", manifest)
    return trial


def put(name: str, text: str | bytes) -> Callable[[TrialDir], object]:
    data = text if isinstance(text, bytes) else text.encode()
    return lambda trial: (trial.path / name).write_bytes(data)


def lose(name: str) -> Callable[[TrialDir], None]:
    def change(trial: TrialDir) -> None:
        path = trial.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def edit(name: str, **values: Any) -> Callable[[TrialDir], None]:
    def change(trial: TrialDir) -> None:
        path = trial.path / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def end_as(status: str, *names: str) -> Callable[[TrialDir], None]:
    def change(trial: TrialDir) -> None:
        for name in names:
            lose(name)(trial)
        edit("state.json", status=status, outcome=status)(trial)

    return change


UNUSUAL = """a:
- b: 1
- c
d e: 2

# f
'g': 3
h: |
  i:
  j: k
l: "m

  n: o"
_p: {q: 1}
yes:
  r: 1e-3
  s: {t: [1, 'u: v']}
  on: yes
  w: ~
  x: "y # z"
aa:
  ab: "ac
  ad: ae"
  af: 1 # ag
ah:
  ai:
  aj: |
    ak
al:
  am: 1
  am: 2
an:
  - 1
ao:
  - ap: 1
ar:
  as: 'at
    au: av'
  aw: ax
    ay
"""
SOUND: dict[str, Callable[[TrialDir], object]] = {
    "done": lambda trial: None,
    "diverged, no summary": end_as("diverged", "summary.json"),
    "failed, with a summary of before": end_as("failed"),
    "cancelled": end_as("cancelled", "summary.json"),
    "no seal, as older versions": lambda t: write_json(
        t.path / "attempts/2/attempt.json", {"pid": 1, "resumed": {"attempt": 1, "step": 5}}
    ),
    "no event": put("events.jsonl", ""),
    "a last event without its newline": put("events.jsonl", '{"kind": "a"}\n{"kind": "b"}'),
    "anchors": put("config.yaml", "seed: &a 0\nmodel: {b: *a}\n"),
    "a list in a section": put(
        "config.yaml", "a:\n- b: 1\n- c\nd e: 2\n\n# f\n'g': 3\nh: |\n  i:\n"
    ),
    "no configuration": put("config.yaml", ""),
    "a broken configuration": put("config.yaml", "a: [1\nb: 2\n"),
}
OTHERS: dict[str, Callable[[TrialDir], object]] = {
    "summary edited": edit("summary.json", **{"val/bpb": 1.0}),
    "summary edited by a byte": lambda t: put(
        "summary.json", t.summary_path.read_bytes().replace(b"1.5", b"1.4")
    )(t),
    "summary missing": lose("summary.json"),
    "summary torn": put("summary.json", '{"val/bpb": 1.'),
    "summary no object": put("summary.json", "[1]"),
    "state torn": put("state.json", '{"status": "do'),
    "state empty": put("state.json", ""),
    "state of a kind": edit("state.json", step="9"),
    "state unknown": edit("state.json", status="fine"),
    "state no text": put("state.json", b"\xff\xfe"),
    "state missing": lose("state.json"),
    "pending": edit("state.json", status="pending"),
    "running": edit("state.json", status="running"),
    "state of an earlier attempt": edit("state.json", attempt=1),
    "attempt torn": put("attempts/2/attempt.json", '{"pid": 1'),
    "attempt of a kind": edit("attempts/1/attempt.json", pid="12"),
    "attempt resumed nowhere": edit("attempts/2/attempt.json", resumed={"attempt": True}),
    "attempt missing": lose("attempts/1/attempt.json"),
    "no attempts": lose("attempts"),
    "a new attempt": lambda trial: trial.acquire(again=("done",)),
    "a folder of an attempt": lambda trial: (trial.path / "attempts/3").mkdir(),
    "events missing": lose("events.jsonl"),
    "events torn": put("events.jsonl", '{"kind": "a"}\n{"kind": "b'),
    "events torn in the middle": put("events.jsonl", '{"kind": "a\n{"kind": "b"}\n'),
    "events no objects": put("events.jsonl", '1\n{"kind": "b"}\n'),
    "config missing": lose("config.yaml"),
    "config no text": put("config.yaml", b"seed: \xff\xfe\n"),
    "no folder": lambda trial: shutil.rmtree(trial.path),
}


@pytest.mark.parametrize("how", [*SOUND, *OTHERS])
def test_read_at_once_it_says_what_it_says_read_one_by_one(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = ended(tmp_path / "s")
    (SOUND | OTHERS)[how](trial)
    assert (read_ended(trial) is not None) == (how in SOUND)
    study = StudyDir(tmp_path / "s")
    at_once = reading.read_index(study, study.manifest())
    monkeypatch.setattr(reading, "read_ended", lambda _: None)
    assert at_once == reading.read_index(study, study.manifest())


def test_a_configuration_read_by_sections_is_the_one_read_whole(tmp_path: Path) -> None:
    trial = ended(tmp_path / "s")
    (trial.path / "config.yaml").write_text(UNUSUAL)
    assert reading.read_config(trial) == reading.flatten(trial.config())


DAMAGED = ("summary edited by a byte", "state torn", "attempt of a kind", "config no text")


@pytest.mark.parametrize("how", DAMAGED)
def test_what_is_damaged_is_named(tmp_path: Path, how: str) -> None:
    trial = ended(tmp_path / "s")
    OTHERS[how](trial)
    study = StudyDir(tmp_path / "s")
    (row,) = reading.read_index(study, study.manifest())["rows"]
    assert f"{how.split()[0]}." in row["damage"]
