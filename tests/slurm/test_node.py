"""What a node does: cores, packing, the canary, ill nodes, the feeder, frozen code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_node import all_done, launch, make_study, outcomes_of, statuses, steps_of
from slurm_box import Box, in_use

from ablate.rundir import incidents


@pytest.fixture
def tiny(boxes: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Arrays of five at most, and no accounting."""
    yield from in_use(boxes(accounting="none", maxarray=5), monkeypatch)


def test_trials_share_an_allocation_and_one_that_fails_harms_none(box: Box, tmp_path: Path) -> None:
    fakes = {
        "slow": {"pause": 0.2},
        "fails": {"fail_at": 3},
        "killed": {"kill_at": 15},
        "a": {"pause": 0.05},
        "b": {"pause": 0.05},
    }
    study = make_study(tmp_path / "s", fakes)
    array, *_ = launch(study, pack=3, cpus=2, heal=False, parallel=1)
    assert [len(task) for task in array.tasks] == [3, 2]
    box.until(lambda: not box.active(), 90)
    trials = {t.id.split("-")[0]: t for t in study.trials()}
    assert trials["fails"].state().outcome == "code"
    assert outcomes_of(trials["killed"]) == ["node", "done"]
    for name in ("slow", "killed", "a", "b"):
        assert steps_of(trials[name]) == list(range(1, 21))
    for trial in trials.values():
        log = trial.newest_attempt().log_path.read_text()
        assert trial.id in log
        assert not any(other.id in log for other in trials.values() if other is not trial)
    # The slot that was free ran what the second task would have: it had nothing left to do.
    first = [n for n, t in trials.items() if t.state().job_id == f"{array.job_id}_0"]
    assert {"a", "b"} <= set(first)
    box.until(lambda: box.history(f"{array.job_id}_0")[-1] == ("FAILED", "1:0"), 60)
    box.until(lambda: box.history(f"{array.job_id}_1")[-1] == ("COMPLETED", "0:0"), 60)


def test_equal_failures_hold_the_rest_back(box: Box, tmp_path: Path) -> None:
    fakes = {f"arm{i}": {"fail_at": 2} for i in range(12)}
    study = make_study(tmp_path / "s", fakes)
    launch(study, canary=3, parallel=2)
    box.until(lambda: not box.active(), 90)
    held = incidents.held(study.path)
    assert held
    assert held["reason"] == "ZeroDivisionError: division by zero"
    assert "Traceback" in held["traceback"]
    assert statuses(study).count("pending") >= 6
    assert launch(study) != []
    assert incidents.held(study.path) is None


@pytest.mark.slow
def test_arrays_are_chunked_and_all_run(tiny: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(12)})
    made = launch(study)
    assert [len(s.tasks) for s in made if s.kind == "trials"] == [5, 5, 2]
    tiny.until(lambda: all_done(study), 120)


@pytest.mark.slow
def test_a_full_queue_is_fed_without_a_client(tiny: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(9)})
    made = launch(study, max_queued=5)
    assert sum(len(s.tasks) for s in made) == 4
    assert len(made[-1].held_back) == 5
    tiny.until(lambda: all_done(study), 240)
    ran = [id for s in study.submissions() for id in s.jobs_of_trials()]
    assert sorted(ran) == sorted(t.id for t in study.trials())
    tiny.until(lambda: not tiny.active(), 60)


def test_what_was_queued_is_what_runs(box: Box, tmp_path: Path) -> None:
    (tmp_path / "my_run.py").write_text("from fake_node import run  # as it was\n")
    study = make_study(tmp_path / "s", {"a": {}, "b": {}})
    array, *_ = launch(study, hold=True, heal=False)
    frozen = study.path / array.source
    assert (frozen / "my_run.py").read_text().endswith("as it was\n")
    assert (frozen / "ablate" / "conf" / "train.yaml").is_file()
    (tmp_path / "my_run.py").write_text("raise SystemExit('edited')\n")
    (tmp_path / "ablate").mkdir()
    (tmp_path / "ablate" / "__init__.py").write_text("raise SystemExit('edited')\n")
    box.run("scontrol", "release", array.job_id)
    box.until(lambda: all_done(study), 60)

    again = make_study(tmp_path / "t", {"a": {}})
    (tmp_path / "ablate" / "__init__.py").unlink()
    (tmp_path / "ablate").rmdir()
    array, *_ = launch(again, hold=True, heal=False)
    edited = again.path / array.source / "ablate" / "rundir" / "names.py"
    edited.write_text(edited.read_text() + "# edited\n")
    box.run("scontrol", "release", array.job_id)
    box.until(lambda: box.history(array.job_id)[-1:] == [("FAILED", "1:0")], 40)
    assert statuses(again) == ["pending"]


def test_a_node_that_kills_trials_is_left_out_of_what_waits(box: Box, tmp_path: Path) -> None:
    """n1 kills whatever runs there, and SLURM fills it first."""
    fakes = {f"arm{i}": {"ill": "n1", "every": 4, "pause": 0.05} for i in range(6)}
    study = make_study(tmp_path / "s", fakes)
    launch(study, heal=False, bad_node_after=2, parallel=1)
    box.until(lambda: all_done(study), 180)
    nodes = [[a.record()["node"] for a in t.attempts()] for t in study.trials()]
    assert sum(node.count("n1") for node in nodes) <= 3, nodes
    assert all(node[-1] != "n1" for node in nodes)
    assert incidents.bad_nodes(study.path, 2) == ["n1"]
    assert all(outcomes_of(t)[-1] == "done" for t in study.trials())


def test_a_task_has_the_cores_that_it_asked_for(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"a": {"show": "SRUN_CPUS_PER_TASK"}})
    launch(study, cpus=3, heal=False)
    box.until(lambda: all_done(study), 40)
    shown = (study.trials()[0].newest_attempt().path / "shown").read_text()
    assert json.loads(shown) == {"SRUN_CPUS_PER_TASK": "3"}
