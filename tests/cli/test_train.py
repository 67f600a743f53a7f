"""`ablate train`: shown when finished, continued when stopped, recorded as a study."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from ablate.launch.job import FencedOffError
from ablate.rundir import StudyDir, TrialDir

sys.path.insert(0, str(Path(__file__).parent))
from user_code import BROKEN_NORM

Call = Callable[..., tuple[int, str, str]]


def only_trial(study: str = "train", runs: str = "runs") -> TrialDir:
    (trial,) = StudyDir(Path(runs) / study).trials()
    return trial


def losses(trial: TrialDir) -> list[float]:
    table = parquet.read_table(trial.metrics_path)
    assert table["step"].to_pylist() == list(range(1, table.num_rows + 1))
    return table["train/loss"].to_pylist()


def test_a_finished_trial_is_shown_and_not_repeated_unless_forced(
    call: Call, small: list[str]
) -> None:
    code, out, _ = call("train", *small)
    assert code == 0
    assert "done at step 6 of 6" in out
    assert "val/bpb" in out
    trial = only_trial()
    before = {p: p.stat().st_mtime_ns for p in trial.path.rglob("*")}
    code, again, err = call("train", *small)
    assert (code, again) == (0, out)
    assert "is finished" in err
    assert {p: p.stat().st_mtime_ns for p in trial.path.rglob("*")} == before
    first = losses(trial)
    assert call("train", *small, "force=true")[0] == 0
    assert losses(trial) == first
    assert (trial.path / "aside-1" / "summary.json").exists()


def test_the_device_of_a_pasted_section_is_taken_and_not_read(call: Call, small: list[str]) -> None:
    """Official OLMo YAMLs say `init_device: meta`; they train as if they did not."""
    assert call("train", *small, "study=bare")[0] == 0
    assert call("train", *small, "model.init_device=meta", "study=pasted")[0] == 0
    assert losses(only_trial("pasted")) == losses(only_trial("bare"))
    code, out, err = call("generate", str(only_trial("pasted").path), "In", "--tokens", "2")
    assert (code, out[:2]) == (0, "In"), err


def test_arms_and_seeds_join_one_study_and_report_reads_it(call: Call, small: list[str]) -> None:
    for extra in (["seed=0"], ["seed=1"], ["position=rope", "seed=0"], ["position=rope", "seed=1"]):
        assert call("train", *small, *extra)[0] == 0
    manifest = StudyDir(Path("runs/train")).manifest()
    assert len(manifest["arms"]) == 2
    assert len(manifest["trials"]) == 4
    assert manifest["arms"][1]["reference"] == manifest["baseline"] == manifest["arms"][0]["name"]
    assert "model.rope" in manifest["arms"][1]["diff"]
    code, out, _ = call("report", "train", "--json")
    assert code == 0
    assert {a["seeds"] for a in json.loads(out)["arms"]} == {2}


def test_where_an_offline_run_of_wandb_lies_is_said(
    call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was asked for, and so no note says why."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, out, _ = call("train", *small, "train.steps=1", "track=wandb", "study=mine")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.split()[0] == "wandb"]
    assert "offline, in runs/mine/trials/" in line
    assert "ablate sync mine" in line
    assert "wandb" not in call("train", *small, "train.steps=1", "study=other")[1]


def test_a_stopped_trial_goes_on_as_if_it_had_never_stopped(
    call: Call, small: list[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    longer = [*small, "train.steps=150"]
    command = [sys.executable, "-m", "ablate", "train", *longer]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    trials = tmp_path / "runs" / "train" / "trials"
    deadline = time.monotonic() + 60
    while not any((TrialDir(p).latest_row() or {"step": 0})["step"] > 9 for p in trials.glob("*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    trial = only_trial()
    state = trial.state()
    assert state.status == "preempted"
    assert 9 < state.step < 150
    assert call("train", *longer)[0] == 0
    assert trial.state().attempt == 2
    assert call("train", *longer, "runs_dir=undisturbed")[0] == 0
    assert losses(trial) == losses(only_trial(runs="undisturbed"))


def test_a_failing_trial_says_why_and_where_the_traceback_is(
    call: Call, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "broken_norms.py").write_text(BROKEN_NORM)
    code, _, err = call("train", *small, "model.layer_norm_type=broken_norms:Norm")
    assert code == 1
    last = err.splitlines()[-1]
    assert "this norm is broken" in last
    assert "Traceback" not in err
    log = only_trial().newest_attempt().log_path
    assert str(log.relative_to(Path.cwd()) if log.is_absolute() else log) in last
    assert "ZeroDivisionError" in log.read_text()
    assert only_trial().state().outcome == "code"
    code, out, _ = call("logs", "train")
    assert code == 0
    assert "this norm is broken" in out


def test_an_edited_norm_of_ones_own_is_trained_and_not_shown_as_it_was(
    call: Call, small: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "own_norms.py"
    code = BROKEN_NORM.replace('raise ZeroDivisionError("this norm is broken")', "return x * {}")
    command = ["train", *small, "model.layer_norm_type=own_norms:Norm"]
    results = []
    for factor in ("1.0", "0.5", "1.0"):
        file.write_text(code.format(factor))
        sys.modules.pop("own_norms", None)  # each command is a process of its own
        status, out, err = call(*command)
        assert status == 0, err
        results.append((out, "is finished" in err))
    (one, shown), (other, _), again = results
    assert one != other
    assert not shown
    assert again == (one, True)
    arms = StudyDir(Path("runs/train")).manifest()["arms"]
    assert len(arms) == 2
    assert "sources.model.layer_norm_type" in arms[1]["diff"]


def test_a_diverging_trial_is_a_result_with_an_exit_code_of_its_own(
    call: Call, small: list[str]
) -> None:
    code, out, _ = call("train", *small, "optim.lr=1e38", "clip=none", "train.steps=20")
    assert code == 1
    assert "diverged at step" in out
    state = only_trial().state()
    assert (state.status, state.outcome) == ("diverged", "diverged")


def test_a_multirun_is_a_study_whose_name_its_overrides_decide(
    call: Call, small: list[str]
) -> None:
    argv = ["train", "-m", *small, "position=rope,none", "seed=0,1"]
    assert call(*argv)[0] == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("multirun-position-")
    study = StudyDir(folder)
    assert [a["name"] for a in study.manifest()["arms"]] == ["position-rope", "position-none"]
    assert [t.state().status for t in study.trials()] == ["done"] * 4
    assert {p.name for p in Path.cwd().iterdir()} == {"runs", "cache", "train.txt", "held_out.txt"}
    again = ["train", "-m", "seed=0,1", "position=rope,none", *small]
    code, _, err = call(*again)
    assert code == 0
    assert err.count("is finished") == 4
    assert [p.name for p in Path("runs").iterdir()] == [folder.name]
    code, out, _ = call("report", folder.name, "--json")
    assert code == 0
    assert len(json.loads(out)["arms"]) == 2


def test_a_multirun_goes_on_past_a_failing_job_and_names_it_at_the_end(
    call: Call, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "broken_norms.py").write_text(BROKEN_NORM)
    norms = "model.layer_norm_type=broken_norms:Norm,rms"
    code, _, err = call("train", "-m", *small, norms, "study=mixed")
    assert code == 1
    assert "broken" in err.splitlines()[-1]
    states = {t.id: t.state().status for t in StudyDir(Path("runs/mixed")).trials()}
    assert sorted(states.values()) == ["done", "failed"]


@pytest.mark.parametrize("other", ["seed=1", "data.text_field=body"])
def test_the_same_arm_on_other_data_is_another_arm_and_on_another_seed_is_not(
    call: Call, small: list[str], other: str
) -> None:
    call("train", *small)
    call("train", *small, other)
    arms = StudyDir(Path("runs/train")).manifest()["arms"]
    assert len(arms) == (1 if other.startswith("seed") else 2)


def test_a_reader_who_leaves_stops_a_trial_that_is_saved(
    tmp_path: Path, environment: dict[str, str], small: list[str]
) -> None:
    """`ablate train | head`: no failure of the trial, and the same command goes on."""
    words = [*small, "train.steps=400", "train.checkpoint_every=0"]
    command = [sys.executable, "-m", "ablate", "train", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"step 40/400" in process.stderr.readline()
    process.stderr.close()
    assert process.wait(100) == 141
    (trial,) = StudyDir(tmp_path / "runs" / "train").trials()
    state = trial.state()
    assert (state.status, state.reason) == ("preempted", "its reader has left")
    assert trial.newest_checkpoint()[1] == state.step < 400
    with open("/dev/full", "w") as full:  # a log on a full disk, which training does not notice
        done = subprocess.run(command, cwd=tmp_path, env=environment, stderr=full, check=False)
    assert done.returncode == 0
    assert (trial.state().status, trial.state().attempt) == ("done", 2)


def test_a_process_that_was_fenced_off_says_so(
    call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still for so long that another took the trial over."""

    def fenced_off(*_: object, **__: object) -> None:
        raise FencedOffError

    monkeypatch.setattr("ablate.launch.job.run_job", fenced_off)
    code, _, err = call("train", *small)
    assert code == 2
    assert "another took over trial" in err
