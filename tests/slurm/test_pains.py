"""What users of such tools suffer from on SLURM, each tried on a real one.

Numbered as in the list of pains that the design was written against.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_node import all_done, launch, make_study, outcomes_of, statuses, steps_of
from slurm_box import Box, in_use

from ablate.launch.observe import scheduler_of, study_view
from ablate.launch.slurm.scheduler import Scheduler
from ablate.rundir import StudyDir

LONG = {"pause": 0.1, "steps": 60}


@pytest.fixture
def bare(boxes: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """No accounting, arrays of five at most, and finished jobs are forgotten in two seconds."""
    yield from in_use(boxes(accounting="none", maxarray=5, extra="MinJobAge=2"), monkeypatch)


def running(study: StudyDir, step: int = 12) -> bool:
    rows = [t.latest_row() or {} for t in study.trials()]
    return all(row.get("step", 0) >= step for row in rows)


def whole(study: StudyDir, steps: int) -> bool:
    return all(steps_of(t) == list(range(1, steps + 1)) for t in study.trials())


def test_pain_01_the_client_is_killed_and_all_that_it_submitted_finishes(
    box: Box, tmp_path: Path
) -> None:
    """The stock launcher blocks, and what it has not submitted dies with the connection."""
    study = make_study(tmp_path / "s", {f"arm{i}": {"pause": 0.02} for i in range(8)})
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fake_node import launch\n"
        "from ablate.rundir import StudyDir\n"
        "launch(StudyDir(Path(sys.argv[1])))\nprint('submitted', flush=True)\ntime.sleep(60)\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", code, str(study.path)],
        env={**box.environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent),
             box.environment["PYTHONPATH"]])},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert client.stdout is not None
    assert select.select([client.stdout], [], [], 60)[0], "it does not submit"
    assert client.stdout.readline() == "submitted\n"
    client.send_signal(signal.SIGKILL)
    client.wait()
    box.until(lambda: all_done(study), 90)
    collected = box.ablate("status", str(study.path), "--json", cwd=tmp_path)
    assert json.loads(collected.stdout)["counts"]["done"] == 8


def test_pain_02_a_failed_trial_is_failed_in_slurm_too(box: Box, tmp_path: Path) -> None:
    """The stock launcher reports failed jobs as COMPLETED."""
    study = make_study(tmp_path / "s", {"fails": {"fail_at": 3}, "good": {}})
    array, *_ = launch(study, heal=False)
    box.until(lambda: sorted(statuses(study)) == ["done", "failed"], 60)
    box.until(lambda: box.history(f"{array.job_id}_0") == [("FAILED", "1:0")], 20)
    box.until(lambda: box.history(f"{array.job_id}_1") == [("COMPLETED", "0:0")], 20)
    done = box.ablate("logs", str(study.path), cwd=tmp_path)
    assert "ZeroDivisionError" in done.stdout


def test_pain_03_editing_yaml_or_code_in_the_queue_changes_nothing(
    box: Box, tmp_path: Path
) -> None:
    (tmp_path / "my_run.py").write_text("SAYS = 'as it was'\n")
    study = make_study(tmp_path / "s", {"a": {}})
    array, *_ = launch(study, hold=True, heal=False)
    (tmp_path / "my_run.py").write_text("SAYS = 'edited'\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text("train: {steps: 1}\n")
    assert (study.path / (array.source or "") / "my_run.py").read_text() == "SAYS = 'as it was'\n"
    box.run("scontrol", "release", array.job_id)
    box.until(lambda: all_done(study), 60)
    assert whole(study, 20)


def test_pain_03_a_configuration_that_is_edited_in_the_queue_is_refused(
    box: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {"a": {}})
    array, *_ = launch(study, hold=True, heal=False)
    config = study.trials()[0].path / "config.yaml"
    config.write_text(config.read_text().replace("steps: 20", "steps: 2"))
    box.run("scontrol", "release", array.job_id)
    box.until(lambda: statuses(study) == ["failed"], 60)
    assert "was changed after" in (study.trials()[0].live_state().reason or "")


def test_pain_04_a_preempted_short_job_has_not_timed_out(box: Box, tmp_path: Path) -> None:
    """A signal in a job of ten minutes or less counts as a time-out with submitit."""
    study = make_study(tmp_path / "s", {"a": dict(LONG)})
    launch(study, time="5m", heal=False, partition="low", sbatch={"nodelist": "n1"})
    box.until(lambda: running(study), 60)
    words = ("-p", "high", "-w", "n1", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    box.run("sbatch", *words)
    box.until(lambda: all_done(study), 90)
    assert outcomes_of(study.trials()[0]) == ["preempted", "done"]
    assert whole(study, 60)


def test_pain_06_a_killed_process_goes_on_from_its_newest_checkpoint(
    box: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {"a": {"kill_at": 15}})
    launch(study, heal=False)
    box.until(lambda: all_done(study), 90)
    second = study.trials()[0].attempts()[1].record()
    assert second["resumed"] == {"attempt": 1, "step": 10}
    assert whole(study, 20)


def test_pain_07_no_accounting_and_the_states_are_right(bare: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"good": {}, "fails": {"fail_at": 3}})
    array, *_ = launch(study, heal=False)
    bare.until(lambda: sorted(statuses(study)) == ["done", "failed"], 60)
    bare.until(lambda: not bare.queue(), 120, "for SLURM to forget the jobs")
    assert bare.call("sacct", "-n", "-j", array.job_id).stdout == ""
    done = bare.ablate("status", str(study.path), "--json", cwd=tmp_path)
    status = json.loads(done.stdout)
    assert done.stderr == ""
    assert [t["status"] for t in status["trials"]] == ["done", "failed"]


def test_pain_07_what_slurm_forgot_is_unknown_and_not_lost(bare: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"a": {}})
    array, *_ = launch(study, heal=False, hold=True)
    bare.run("scancel", array.job_id)
    bare.until(lambda: not bare.queue(), 120)
    (view,) = study_view(study, scheduler_of(study))
    assert (view.status, view.slurm_state) == ("pending", None)
    assert launch(study, heal=False) != [], "and a launch submits it again"
    bare.until(lambda: all_done(study), 60)


def test_pain_08_watching_asks_slurm_seldom(box: Box, tmp_path: Path) -> None:
    """Two hundred trials, a look every 50 ms, and a counting stand-in before the real commands."""
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(200)})
    launch(study, hold=True, heal=False)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "sacct"):
        real = box.run("which", name).strip()
        path = folder / name
        path.write_text(f'#!/bin/sh\necho {name} >> {folder}/calls\nexec {real} "$@"\n')
        path.chmod(0o755)
    environment = {**box.environment, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "ablate", "watch", str(study.path), "--interval", "0.05"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            box.until(lambda: (folder / "calls").exists(), 60)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(12)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        finally:
            process.kill()
    assert 1 <= len((folder / "calls").read_text().split()) <= 3
    assert set(statuses(study)) == {"pending"}


def test_pain_09_more_trials_than_an_array_may_have(bare: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(12)})
    made = launch(study, heal=False)
    assert [len(s.tasks) for s in made] == [5, 5, 2]
    bare.until(lambda: all_done(study), 120)


def test_pain_10_a_trial_has_the_cores_that_it_asked_for(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {"a": {"show": "SRUN_CPUS_PER_TASK"}})
    launch(study, cpus=4, heal=False)
    box.until(lambda: all_done(study), 60)
    shown = (study.trials()[0].newest_attempt().path / "shown").read_text()  # type: ignore[union-attr]
    assert json.loads(shown) == {"SRUN_CPUS_PER_TASK": "4"}


def test_pain_12_arms_of_other_needs_ask_for_other_resources(box: Box, tmp_path: Path) -> None:
    from fake_node import FAST, RUNNER

    from ablate.config.schema import ClusterConfig
    from ablate.launch.slurm.submit import submit

    study = make_study(tmp_path / "s", {"small": {}, "small2": {}, "large": {}})
    small = ClusterConfig(**FAST, gpus=1, heal=False)
    large = ClusterConfig(**FAST, gpus=2, pack=2, heal=False)
    made = submit(
        study,
        study.trials(),
        small,
        command="test",
        hold=True,
        runner=RUNNER,
        clusters={study.trials()[2].id: large},
        cwd=tmp_path,
    )
    assert [len(s.tasks) for s in made] == [2, 1]
    asked = [box.run("scontrol", "show", "job", s.job_id) for s in made]
    assert "gpu:1" in asked[0]
    assert "gpu:2" in asked[1]


def test_pain_13_small_trials_share_an_allocation(box: Box, tmp_path: Path) -> None:
    fakes = {"fails": {"fail_at": 3}, "a": {"pause": 0.05}, "b": {"pause": 0.05}, "c": {}}
    study = make_study(tmp_path / "s", fakes)
    (array,) = launch(study, pack=4, heal=False)
    assert len(array.tasks) == 1
    box.until(lambda: sorted(statuses(study)) == ["done", "done", "done", "failed"], 90)
    logs = [t.newest_attempt().log_path for t in study.trials()]  # type: ignore[union-attr]
    assert len(set(logs)) == 4
    assert all(path.exists() for path in logs)


@pytest.mark.slow
def test_pain_21_only_what_the_infrastructure_broke_is_tried_again(
    box: Box, tmp_path: Path
) -> None:
    """A deterministic crash is not repeated for ever, and a killed process is."""
    fakes = {
        "code": {"fail_at": 5, "always": True},
        "diverges": {"fail_at": 5, "how": "diverged", "always": True},
        "oom": {"fail_at": 5, "how": "oom", "always": True},
        "killed": {"kill_at": 15},
        "cursed": {"kill_at": 5, "always": True},
    }
    study = make_study(tmp_path / "s", fakes)
    launch(study, heal=False, max_retries=1, canary=0)
    box.until(lambda: set(statuses(study)) <= {"done", "failed", "diverged"}, 120)
    attempts = {t.id.split("-")[0]: len(t.attempts()) for t in study.trials()}
    ends = {t.id.split("-")[0]: t.state().status for t in study.trials()}
    assert ends == {
        "code": "failed",
        "diverges": "diverged",
        "oom": "failed",
        "killed": "done",
        "cursed": "failed",
    }
    assert (attempts["code"], attempts["diverges"], attempts["oom"]) == (1, 1, 1)
    assert attempts["killed"] == 2
    assert attempts["cursed"] <= 3


def test_pain_22_a_plain_cluster_and_no_site_file(bare: Box, tmp_path: Path) -> None:
    """No account, no QOS, no constraint, no setup lines, no accounting."""
    study = make_study(tmp_path / "s", {"a": {}})
    (array,) = launch(study, heal=False, memory=None, time="1h")
    text = "".join(p.read_text() for p in (study.path / "submitit").rglob("*.sh"))
    assert not any(word in text for word in ("--account", "--qos", "--constraint", "module load"))
    bare.until(lambda: all_done(study), 60)
    scheduler = Scheduler()
    scheduler.jobs([array.job_id])
    assert scheduler.answered()
