"""The verbs on a real cluster: from another process, with daemons down, by the files first."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fake_node import all_done, launch, make_study, statuses, steps_of
from slurm_box import Box
from test_submit import WORDS, user_folder
from user_code import BROKEN_NORM

from ablate.launch.notify import tell_if_over
from ablate.launch.retrying import chosen, reopen
from ablate.launch.settings import remember
from ablate.rundir import StudyDir

LONG = {"pause": 0.1, "steps": 100}


def status_of(box: Box, study: StudyDir, *words: str) -> dict:
    done = box.ablate("status", str(study.path), "--json", *words, cwd=study.path.parent)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_status_tells_what_waits_in_the_queue_and_where_the_rest_runs(
    box: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": dict(LONG) for i in range(3)})
    launch(study, heal=False, parallel=1)
    box.until(lambda: statuses(study).count("running") == 1, 60)
    box.until(lambda: any((t.latest_row() or {}).get("step", 0) > 2 for t in study.trials()), 20)
    status = status_of(box, study)
    assert status["scheduler"] == "answers"
    assert status["queued"] == 2
    (running,) = [t for t in status["trials"] if t["status"] == "running"]
    assert running["node"].startswith("n")
    assert running["step"] > 0
    assert running["eta"] is not None
    assert sorted(t["slurm_state"] for t in status["trials"]) == ["PENDING", "PENDING", "RUNNING"]


def test_cancel_takes_what_waits_out_of_the_queue_and_lets_what_runs_save(
    box: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": dict(LONG) for i in range(3)})
    launch(study, parallel=1)
    box.until(lambda: any((t.latest_row() or {}).get("step", 0) > 5 for t in study.trials()), 60)
    done = box.ablate("cancel", str(study.path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 cancelled, 1 save and stop" in done.stdout
    box.until(lambda: statuses(study) == ["cancelled"] * 3, 40)
    box.until(lambda: not box.active(), 40, "for the feeder to be gone too")
    ran = [t for t in study.trials() if t.latest_row()]
    assert len(ran) == 1
    assert ran[0].newest_checkpoint() is not None
    for trial in chosen(study, ("cancelled",), None):
        reopen(trial)
    launch(study, heal=False)
    box.until(lambda: all_done(study), 120)
    assert all(steps_of(t) == list(range(1, 101)) for t in study.trials())


def test_with_the_controller_down_the_files_answer(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"runs": {"pause": 0.2, "steps": 200}, "waits": {}})
    launch(study, heal=False, parallel=1)
    box.until(lambda: (study.trials()[0].latest_row() or {}).get("step", 0) > 2, 60)
    time.sleep(5)  # slurmctld saves its state
    box.kill_daemon("slurmctld")
    try:
        began = time.monotonic()
        status = status_of(box, study)
        assert time.monotonic() - began < 60
        assert status["scheduler"] == "silent"
        assert [t["status"] for t in status["trials"]] == ["running", "pending"]
        done = box.ablate("cancel", str(study.path), cwd=tmp_path)
        assert "SLURM does not answer" in done.stdout
        box.until(lambda: study.trials()[0].state().status == "cancelled", 40)
    finally:
        box.start_daemon("slurmctld")
    box.until(lambda: box.call("squeue", "-h").returncode == 0, 60)
    box.until(lambda: not box.active(), 60)
    assert statuses(study) == ["cancelled", "cancelled"]


def test_with_accounting_down_the_files_answer(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"a": {}, "b": {"fail_at": 3}})
    launch(study, heal=False)
    box.kill_daemon("slurmdbd")
    try:
        box.until(lambda: sorted(statuses(study)) == ["done", "failed"], 60)
        assert status_of(box, study)["counts"]["failed"] == 1
    finally:
        box.start_daemon("slurmdbd")


def test_the_last_job_calls_the_users_hook_once(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(4)})
    out = tmp_path / "called"
    remember(study, {"notify": f"echo $STUDY $STATE $DONE >> {out}"}, None)
    launch(study)
    box.until(lambda: all_done(study), 90)
    box.until(lambda: not box.active(), 90)
    assert out.read_text() == "s done 4\n"
    assert tell_if_over(study) is None


@pytest.mark.slow
def test_a_budget_that_is_used_up_saves_what_runs_and_holds_the_rest(
    box: Box, tmp_path: Path
) -> None:
    out = tmp_path / "called"
    study = make_study(tmp_path / "s", {f"arm{i}": {"pause": 0.2, "steps": 500} for i in range(3)})
    settings = {"max_gpu_hours": 6 / 3600, "notify": f"echo $STATE >> {out}"}
    remember(study, settings, None)
    launch(study, parallel=1, gpus=1)
    box.until(lambda: not box.active(), 180, "until nothing is left in the queue")
    assert sorted(statuses(study)) == ["pending", "pending", "preempted"]
    stopped = next(t for t in study.trials() if t.live_state().status == "preempted")
    assert stopped.newest_checkpoint() is not None
    status = status_of(box, study)
    assert status["gpu_hours"]["used"] >= 6 / 3600 - 0.0001
    assert status["gpu_hours"]["used"] < 60 / 3600
    reasons = [(t["status"], t["reason"], t["slurm_state"]) for t in status["trials"]]
    assert all("GPU-hours are used up" in (r or "") for _, r, _ in reasons), reasons
    assert out.read_text() == "stalled\n"
    remember(study, {}, None)
    assert launch(study, heal=False) != []


def test_a_retry_in_the_second_of_the_failure_is_submitted(box: Box, tmp_path: Path) -> None:
    """The job that failed is still ending, and must not be taken for one that runs the trial."""
    study = make_study(tmp_path / "s", {"a": {"fail_at": 3}})
    (trial,) = study.trials()
    launch(study, heal=False)
    box.until(lambda: trial.state().status == "failed", 60)
    reopen(trial)
    assert launch(study, heal=False) != []
    box.until(lambda: all_done(study), 60)
    assert len(trial.attempts()) == 2


@pytest.mark.slow
def test_retry_submits_again_what_failed(box: Box, tmp_path: Path) -> None:
    """With real training, and an arm that fails as long as a folder is not there."""
    user_folder(tmp_path)
    there = tmp_path / "there"
    works = (
        f"if __import__('os').path.exists({str(there)!r}):\n            return x * self.weight\n"
    )
    (tmp_path / "odd.py").write_text(BROKEN_NORM.replace("raise", f"{works}        raise"))
    sweep = tmp_path / "sweeps" / "mine.yaml"
    text = sweep.read_text().replace("position=alibi", "model.layer_norm_type=odd:Norm")
    sweep.write_text(text)
    done = box.ablate(*WORDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    study = StudyDir(tmp_path / "runs" / "mine")
    box.until(lambda: sorted(statuses(study)) == ["done", "done", "failed"], 180)
    there.mkdir()
    done = box.ablate("retry", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Submitted" in done.stderr
    box.until(lambda: all_done(study), 180)
    assert sorted(len(t.attempts()) for t in study.trials()) == [1, 1, 2]
