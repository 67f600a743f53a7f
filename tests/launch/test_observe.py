"""What the files and SLURM say together: the files first, and neither alone is trusted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablate.launch.observe import study_view
from ablate.launch.slurm.states import UNFINISHED
from ablate.rundir import StudyDir
from ablate.rundir.submission import Submission, add_submission

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from written import end, make_study, start


class Slurm:
    """Knows what it is told."""

    def __init__(self, **states: Any) -> None:
        self.states, self.asked = states, []

    def jobs(self, job_ids: Any) -> dict[str, Any]:
        self.asked.append(set(job_ids))
        usual = {"reason": None, "node": "n2", "exit_code": None, "start": None}
        given = {"7_" + k[1:]: v for k, v in self.states.items()}
        found = {k: v if isinstance(v, dict) else {"state": v} for k, v in given.items()}
        return {k: SimpleNamespace(**{**usual, **v}) for k, v in found.items() if k in job_ids}

    def cancel(self, job_ids: Any) -> None: ...
    def answered(self) -> bool:
        return True


def submitted(path: Path, trials: int = 2, **more: Any) -> StudyDir:
    study = make_study(path, trials, 1)
    tasks = [[t.id] for t in study.trials()] + [["of-another-study"]]
    add_submission(path / "submissions", Submission(job_id="7", tasks=tasks, **more))
    return study


def seen(study: StudyDir, slurm: Slurm | None) -> list[tuple[str, str | None]]:
    return [(v.status, v.slurm_state) for v in study_view(study, slurm)]


def test_what_slurm_does_not_know_is_not_lost(tmp_path: Path) -> None:
    study = submitted(tmp_path)
    start(study.trials()[0], 5, job_id="7_0", age=5)
    assert seen(study, Slurm()) == seen(study, None) == [("running", None), ("pending", None)]


@pytest.mark.parametrize("word", sorted(UNFINISHED))
def test_a_job_that_slurm_has_not_finished_with_has_not_failed(tmp_path: Path, word: str) -> None:
    study = submitted(tmp_path, 1)
    assert seen(study, Slurm(_0=word)) == [("pending", word)]


def test_what_waits_in_the_queue_says_so_and_stays_pending(tmp_path: Path) -> None:
    study = submitted(tmp_path)
    slurm = Slurm(_0="PENDING", _1={"state": "PENDING", "reason": "Resources"})
    assert seen(study, slurm) == [("pending", "PENDING")] * 2
    assert [v.reason for v in study_view(study, slurm)] == ["queued", "queued (Resources)"]


@pytest.mark.parametrize("word", ["FAILED", "COMPLETED", "NODE_FAIL", "CANCELLED by 0", "PENDING"])
def test_a_trial_that_has_ended_has_ended_whatever_slurm_says(tmp_path: Path, word: str) -> None:
    study = submitted(tmp_path, 1)
    end(study.trials()[0], job_id="7_0")
    slurm = Slurm(_0=word)
    assert seen(study, slurm) == [("done", None)]
    assert slurm.asked == [], "and SLURM need not be asked"


@pytest.mark.parametrize("word", ["FAILED", "COMPLETED", "NODE_FAIL", "PENDING", "RUNNING"])
def test_a_fresh_lease_outranks_slurm(tmp_path: Path, word: str) -> None:
    study = submitted(tmp_path, 1)
    start(study.trials()[0], 5, job_id="7_0", age=5)
    assert seen(study, Slurm(_0=word)) == [("running", word)]


@pytest.mark.parametrize(
    ("word", "status", "outcome"),
    [
        ("PENDING", "preempted", "node"),
        ("NODE_FAIL", "preempted", "node"),
        ("TIMEOUT", "preempted", "time_limit"),
        ("PREEMPTED", "preempted", "preempted"),
        ("FAILED", "preempted", "node"),
        ("CANCELLED by 0", "cancelled", "cancelled"),
        ("OUT_OF_MEMORY", "failed", "oom"),
        ("RUNNING", "running", None),
    ],
)
def test_where_the_lease_has_expired_slurm_says_what_became_of_the_trial(
    tmp_path: Path, word: str, status: str, outcome: str | None
) -> None:
    study = submitted(tmp_path, 1)
    start(study.trials()[0], 5, job_id="7_0", age=500)
    (view,) = study_view(study, Slurm(_0=word))
    assert (view.status, view.outcome) == (status, outcome)
    assert view.reason
    assert view.attempt == 1


def test_a_job_that_failed_before_its_trial_started_is_a_failure(tmp_path: Path) -> None:
    study = submitted(tmp_path, 1)
    slurm = Slurm(_0={"state": "FAILED", "exit_code": "127:0"})
    (view,) = study_view(study, slurm)
    assert view.status == "failed"
    assert "127:0 before it started" in (view.reason or "")


def test_a_requeued_job_that_runs_again_is_starting(tmp_path: Path) -> None:
    study = submitted(tmp_path, 1)
    start(study.trials()[0], 5, job_id="7_0", age=500)
    slurm = Slurm(_0={"state": "RUNNING", "start": time.time() - 3, "node": "n4"})
    (view,) = study_view(study, slurm)
    assert (view.status, view.node) == ("preempted", "n4")
    assert "starting on n4" in (view.reason or "")


def test_a_packed_job_that_failed_says_nothing_of_a_trial_that_did_not_start(
    tmp_path: Path,
) -> None:
    study = make_study(tmp_path, 2, 1)
    ids = [t.id for t in study.trials()]
    add_submission(tmp_path / "submissions", Submission(job_id="7_0", tasks=[ids]))
    end(study.trials()[0], "failed", 3)
    views = study_view(study, Slurm(_0="FAILED"))
    assert [v.status for v in views] == ["failed", "pending"]


def test_the_newest_submission_counts(tmp_path: Path) -> None:
    study = submitted(tmp_path, 2)
    ids = [t.id for t in study.trials()]
    add_submission(
        tmp_path / "submissions",
        Submission(job_id="7", tasks=[["x"], ["x"], [ids[0]]], held_back=[ids[1]]),
    )
    views = study_view(study, Slurm(_0="FAILED", _1="FAILED", _2="PENDING"))
    assert [(v.status, v.job_id) for v in views] == [("pending", "7_2"), ("pending", None)]
    assert "held back" in (views[1].reason or "")


def test_a_trial_that_went_on_elsewhere_is_not_judged_by_its_old_job(tmp_path: Path) -> None:
    study = submitted(tmp_path, 1, time=time.time() - 3600)
    attempt = start(study.trials()[0], 5)
    attempt.release(study.trials()[0].state().replace(status="preempted", outcome="preempted"))
    assert seen(study, Slurm(_0="CANCELLED")) == [("preempted", None)]


def test_a_damaged_submission_hides_nothing(tmp_path: Path) -> None:
    study = submitted(tmp_path, 2)
    (tmp_path / "submissions" / "2.json").write_text("{")
    assert seen(study, Slurm(_0="PENDING")) == [("pending", "PENDING"), ("pending", None)]


def test_one_question_for_all_of_a_large_study(tmp_path: Path) -> None:
    study, slurm = submitted(tmp_path, 20), Slurm()
    study_view(study, slurm)
    assert slurm.asked == [{f"7_{i}" for i in range(20)}]


def test_an_array_of_one_is_a_plain_job(tmp_path: Path) -> None:
    study = make_study(tmp_path, 1, 1)
    add_submission(tmp_path / "submissions", Submission(job_id="7", tasks=[[study.trials()[0].id]]))
    assert study_view(study, None)[0].job_id == "7"
