"""`submit`: arrays out, the client gone, every trial done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_node import RUNNER, make_study, steps_of
from slurm_box import Box

from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.submit import submit
from ablate.rundir import StudyDir, Submission

FAST: dict[str, Any] = {"name": "slurm", "time": "20m", "memory": "200M"}


def launch(study: StudyDir, cluster: ClusterConfig | None = None, **more: Any) -> list[Submission]:
    given = cluster or ClusterConfig(**FAST)
    options = {"command": "ablate launch ...", "runner": RUNNER, "cwd": study.path.parent, **more}
    return submit(study, study.trials(), given, **options)


def statuses(study: StudyDir) -> list[str]:
    return [t.live_state().status for t in study.trials()]


def all_done(study: StudyDir) -> bool:
    return set(statuses(study)) == {"done"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_array_runs_every_trial_and_says_completed(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(4)})
    array, feeder = launch(study)
    assert [len(t) for t in array.tasks] == [1] * 4
    assert feeder.kind == "feeder"
    box.until(lambda: all_done(study), 60)
    for i, trial in enumerate(study.trials()):
        assert steps_of(trial) == list(range(1, 21))
        assert trial.state().job_id == f"{array.job_id}_{i}"
        record = trial.newest_attempt().record()
        assert (record["restart"], record["node"][0]) == (0, "n")
        job = f"{array.job_id}_{i}"
        box.until(lambda job=job: box.history(job) == [("COMPLETED", "0:0")], 20)
    box.until(lambda: not box.active(), 60)
    assert launch(study) == []
