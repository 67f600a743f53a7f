"""The client that waits for its jobs, beside a SLURM that forgets them; no cluster is needed."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_node import make_study

import ablate.launch.observe
import ablate.launch.slurm.submit
from ablate.cli import multirun_patience, multirun_slurm
from ablate.cli.multirun_launchers import Asked
from ablate.cli.multirun_patience import PATIENCE_SECONDS, TRIES, UNKNOWN_SECONDS
from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.scheduler import JobInfo
from ablate.rundir import State, StudyDir, Submission, TrialDir, incidents

Story = Callable[[float], None]


class Slurm:
    """Knows what it is told; `story` goes on while the client sleeps."""

    def __init__(self, study: StudyDir, story: Story) -> None:
        self.study, self.story, self.now = study, story, 0.0
        self.words: dict[str, str] = {}
        self.awake = True
        self.submitted: list[tuple[float, list[str]]] = []

    def jobs(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        return {i: JobInfo(job_id=i, state=self.words[i]) for i in job_ids if i in self.words}

    def answered(self) -> bool:
        return self.awake

    def sleep(self, seconds: float) -> None:
        self.now += 10 * seconds
        assert self.now < 5000, "it waits for ever"
        self.story(self.now)

    def submit(self, study: StudyDir, trials: Sequence[TrialDir], *_: Any, **more: Any) -> Any:
        """As the second submission and on; it forgets those jobs too."""
        ids = [t.id for t in trials]
        self.submitted.append((self.now, ids))
        return [give(study, f"{len(self.submitted) + 1}0", ids)]


def give(study: StudyDir, job: str, ids: Sequence[str], **more: Any) -> Submission:
    one = Submission(job_id=job, tasks=[[id] for id in ids], resources={}, source="", command="")
    return study.add_submission(Submission(**{**asdict(one), **more}))


def finish(trial: TrialDir) -> None:
    trial.acquire(again=("done",)).release(State(status="done", outcome="done", step=20, steps=20))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Two trials, submitted as 10_0 and 10_1 with the feeder 11; nothing is known of them."""
    study = make_study(tmp_path / "s", {"a": {}, "b": {}})
    give(study, "10", [t.id for t in study.trials()])
    give(study, "11", [], kind="feeder")
    made = Slurm(study, lambda now: None)
    clock = types.SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    monkeypatch.setattr(multirun_slurm, "time", clock)
    monkeypatch.setattr(multirun_patience, "time", clock)
    monkeypatch.setattr(ablate.launch.observe, "scheduler_of", lambda study: made)
    monkeypatch.setattr(ablate.launch.slurm.submit, "submit", made.submit)
    return made


def wait(slurm: Slurm, **cluster: Any) -> list[str | None]:
    """Why each trial was left, None where it was not."""
    config = asdict(ClusterConfig(name="slurm", **cluster))
    asked = [Asked(overrides=[], trial=t, cluster=config) for t in slurm.study.trials()]
    multirun_slurm.wait(slurm.study, asked)
    return [a.left for a in asked]


def test_what_slurm_has_forgotten_is_submitted_again_and_waited_for(
    slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = slurm.study.trials()

    def story(now: float) -> None:
        slurm.words = {} if not slurm.submitted else {"20_0": "RUNNING", "20_1": "PENDING"}
        if slurm.submitted and now > slurm.submitted[0][0] + 900 and a.state().status != "done":
            finish(a)
            finish(b)

    slurm.story = story
    assert wait(slurm) == [None, None]
    ((when, ids),) = slurm.submitted
    assert UNKNOWN_SECONDS <= when < UNKNOWN_SECONDS + 20
    assert ids == [a.id, b.id]
    assert "SLURM has forgotten 2 of the trials; submitted again as 20." in capsys.readouterr().err


def test_what_is_forgotten_again_and_again_without_progress_is_given_up(slurm: Slurm) -> None:
    assert all("knows no job 40_" in (left or "") for left in wait(slurm))
    assert len(slurm.submitted) == TRIES


def test_progress_is_worth_another_try(slurm: Slurm) -> None:
    a, _ = slurm.study.trials()

    def story(now: float) -> None:
        if len(slurm.submitted) == TRIES and a.state().status != "done":
            finish(a)

    slurm.story = story
    wait(slurm)
    assert len(slurm.submitted) == 2 * TRIES


def test_only_what_is_lost_is_submitted_again(slurm: Slurm) -> None:
    """One task still waits in the queue, and a feeder may come; one trial was cancelled."""
    a, b = slurm.study.trials()
    a.cancel_path.touch()

    def story(now: float) -> None:
        slurm.words = {"10_1": "PENDING"}
        if now > 900 and b.state().status != "done":
            finish(b)

    slurm.story = story
    left = wait(slurm)
    assert "knows no job 10_0" in (left[0] or "")
    assert slurm.submitted == []


@pytest.mark.parametrize("why", ["heal", "held", "known"])
def test_nothing_is_submitted_again_that_is_not_to_run(why: str, slurm: Slurm) -> None:
    """Healing is switched off, the canary holds the study back, or the feeder has given it up."""
    if why == "held":
        words = {"signature": "x", "reason": "broken", "log": "", "traceback": ""}
        incidents.hold(slurm.study.path, trials=[], **words)
    if why == "known":
        slurm.words = {"10_0": "TIMEOUT", "10_1": "TIMEOUT", "11": "COMPLETED"}
    assert all(left is not None for left in wait(slurm, heal=why != "heal"))
    assert slurm.submitted == []


def test_a_silent_slurm_has_forgotten_nothing(slurm: Slurm) -> None:
    def story(now: float) -> None:
        slurm.awake = now > 3000
        slurm.words = {"10_0": "RUNNING", "10_1": "RUNNING"} if slurm.awake else {}
        if now > 3100 and any(t.state().status != "done" for t in slurm.study.trials()):
            for trial in slurm.study.trials():
                finish(trial)

    slurm.awake, slurm.story = False, story
    assert wait(slurm) == [None, None]
    assert slurm.submitted == []


def test_a_feeder_that_is_to_come_is_waited_for(slurm: Slurm) -> None:
    def story(now: float) -> None:
        slurm.words = {"10_0": "NODE_FAIL", "10_1": "NODE_FAIL", "11": "PENDING"}
        if now > 10 * PATIENCE_SECONDS:
            slurm.words["11"] = "COMPLETED"

    slurm.story = story
    assert all("NODE_FAIL" in (left or "") for left in wait(slurm))
    assert slurm.now > 11 * PATIENCE_SECONDS


def test_trials_that_a_forgotten_feeder_holds_back_are_submitted_again(slurm: Slurm) -> None:
    give(slurm.study, "12", [], kind="feeder", held_back=[t.id for t in slurm.study.trials()])

    def story(now: float) -> None:
        if slurm.submitted and any(t.state().status != "done" for t in slurm.study.trials()):
            for trial in slurm.study.trials():
                finish(trial)

    slurm.story = story
    assert wait(slurm) == [None, None]
    assert len(slurm.submitted) == 1
