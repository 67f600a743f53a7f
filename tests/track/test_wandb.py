"""wandb mirrors the local files with the real client, and can do the training no harm."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_training import run
from stand_in import Server

from ablate.config.fingerprint import fingerprint, trial_id
from ablate.launch.job import run_job
from ablate.rundir import StudyDir, TrialDir
from ablate.track.client import choose_mode
from ablate.track.facts import run_id

TRACK = {"name": "wandb", "project": "demo", "entity": None, "mode": "auto", "tags": ["mine"]}
KEY = "local" + "0" * 35


def make_tracked(path: Path, steps: int = 30, *, mode: str = "auto", **fake: Any) -> TrialDir:
    track = {**TRACK, "mode": mode}
    config = {"seed": 3, "train": {"steps": steps}, "fake": fake, "track": track}
    study = StudyDir(path / "runs" / "hello")
    trial = study.trial(trial_id("rope", config))
    trial.create(config, steps)
    arm = {"name": "rope", "levels": {"position": "rope", "norm": "rms"}, "parameters": 7}
    entry = {"id": trial.id, "arm": "rope", "seed": 3, "fingerprint": fingerprint(config)}
    manifest = {"schema": 1, "baseline": "base", "arms": [arm], "trials": [entry]}
    study.write_manifest(manifest)
    return trial


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return value


def mirrored(trial: TrialDir) -> bool:
    log = trial.newest_attempt().path / "wandb.log"
    return log.exists() and "mirrored in" in log.read_text()


def records(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def history_steps(found: list[dict[str, Any]]) -> list[int]:
    rows = [r for r in found if r.get("type") == "history" or "history" in r]
    return [int(v) for v in re.findall(r'"_step"\D*(\d+)', json.dumps(rows).replace("\\", ""))]


def test_offline_a_trial_of_several_attempts_is_one_run_with_each_step_once(
    tmp_path: Path,
) -> None:
    trial = make_tracked(tmp_path, signal_at=13)
    assert run_job(trial, run=run).status == "preempted"
    assert not (trial.path / "wandb").exists(), "nothing offline before the record is whole"
    assert run_job(trial, run=run).status == "done"
    wait_for(lambda: mirrored(trial))
    (folder,) = (trial.path / "wandb").glob("offline-run-*")
    assert folder.name.endswith(run_id("hello", trial.id))
    found = records(folder)
    assert history_steps(found) == list(range(1, 31))
    text = json.dumps(found)
    for fact in ("hello", "position=rope", "norm=rms", "mine", "tokens", trial.id, "val/bpb"):
        assert fact in text, fact


def test_a_run_is_named_by_its_study_and_trial_alone() -> None:
    assert run_id("a", "x-s0") == run_id("a", "x-s0")
    assert len({run_id(s, t) for s in "ab" for t in ("x-s0", "x-s1")}) == 4


@pytest.mark.parametrize(
    ("wanted", "environment", "mode"),
    [
        ("auto", {}, "offline"),
        ("auto", {"WANDB_API_KEY": KEY}, "online"),
        ("auto", {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("online", {}, "online"),
        ("offline", {"WANDB_API_KEY": KEY}, "offline"),
    ],
)
def test_the_mode_is_as_asked_else_by_the_key(
    wanted: str, environment: dict[str, str], mode: str
) -> None:
    assert choose_mode(wanted, environment) == mode


def test_a_login_counts_as_a_key(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {KEY}\n")
    assert choose_mode("auto", {}) == "online"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def test_a_server_that_hangs_delays_neither_the_training_nor_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_server: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    trial, stamps = make_tracked(tmp_path, pause=0.005), []
    began = time.monotonic()
    state = run_job(trial, run=run, on_row=lambda row: stamps.append(time.monotonic()))
    assert state.status == "done"
    assert len(stamps) == 30
    assert max(b - a for a, b in itertools.pairwise(stamps)) < 1.0
    assert time.monotonic() - began < 10


def test_a_server_that_refuses_leaves_a_run_to_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "too short")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    trial = make_tracked(tmp_path, pause=0.2)
    assert run_job(trial, run=run).status == "done"
    wait_for(lambda: list((trial.path / "wandb").glob("offline-run-*")))
    wait_for(lambda: mirrored(trial))


def test_online_a_trial_of_several_attempts_is_one_run_with_each_step_once(
    tmp_path: Path, server: Server
) -> None:
    trial = make_tracked(tmp_path, signal_at=13, pause=0.1)
    assert run_job(trial, run=run).status == "preempted"
    wait_for(lambda: mirrored(trial))
    (name,) = server.runs
    assert name == run_id("hello", trial.id)
    assert server.runs[name].steps() == list(range(1, 14))
    assert server.runs[name].state == "preempted", "neither crashed nor finished"
    assert run_job(trial, run=run).status == "done"
    wait_for(lambda: mirrored(trial))
    (run_there,) = server.runs.values()
    assert run_there.steps() == list(range(1, 31))
    assert run_there.group == "hello"
    assert {"position=rope", "norm=rms", "mine"} <= set(run_there.tags)
    assert run_there.config["train"]["value"]["steps"] == 30
    assert run_there.plain_config()["factor.position"] == "rope"
    assert run_there.state == "finished"
    assert run_there.conflicts == 0
    assert run_there.summary["val/bpb"] == trial.summary()["val/bpb"]
    assert not list((trial.path / "wandb").glob("offline-run-*"))
