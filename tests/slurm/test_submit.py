"""`submit`: arrays out, the client gone, every trial done."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_node import all_done, launch, make_study, steps_of
from slurm_box import Box
from user_code import write_texts

from ablate.rundir import StudyDir


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


def test_launches_from_several_shells_in_the_same_second_submit_every_trial_once(
    box: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {} for i in range(4)})
    code = (
        "import sys\nfrom pathlib import Path\nfrom fake_node import launch\n"
        "from ablate.rundir import StudyDir\nsys.stdin.read()\n"
        "print(len(launch(StudyDir(Path(sys.argv[1])), heal=False)))\n"
    )
    shells = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(study.path)],
            env=box.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    time.sleep(1.0)
    said = []
    for shell in shells:
        assert shell.stdin is not None
        shell.stdin.close()  # now
        shell.stdin = None  # which communicate() would flush
    for shell in shells:
        out, _ = shell.communicate(timeout=120)
        said.append(int(out))
        assert shell.returncode == 0
    assert sorted(said) == [0, 0, 0, 1]
    box.until(lambda: all_done(study), 60)
    assert [len(t.attempts()) for t in study.trials()] == [1] * 4


def test_an_old_pickle_is_never_taken_for_a_result(box: Box, tmp_path: Path) -> None:
    """A fresh cluster counts its jobs from 1 again; submitit finds results by the number alone."""
    study = make_study(tmp_path / "s", {"a": {}, "b": {}})
    for trial in study.trials():
        launch_one(study, trial.id)
    folders = {p.parent for p in (study.path / "submitit").rglob("*_submitted.pkl")}
    assert len(folders) == 2
    box.until(lambda: all_done(study), 60)


def launch_one(study: StudyDir, id: str) -> None:
    from fake_node import FAST, RUNNER

    from ablate.config.schema import ClusterConfig
    from ablate.launch.slurm.submit import submit

    given = ClusterConfig(**FAST, heal=False)
    more = {"command": "test", "runner": RUNNER, "cwd": study.path.parent}
    assert submit(study, [study.trial(id)], given, **more)


SWEEP = """\
# @package _global_
sweep:
  question: Does it run?
  baseline: [size=tiny, train.steps=6, train.batch_size=2, train.sequence_length=16]
  factors:
    position: [position=rope, position=alibi]
  seeds: 1
"""


def user_folder(path: Path) -> None:
    (path / "sweeps").mkdir()
    (path / "sweeps" / "mine.yaml").write_text(SWEEP)
    write_texts(path)


WORDS = (
    "launch", "sweep=mine", "cluster=slurm", "resources=cpu", "data.path=train.txt",
    "data.validation_path=held_out.txt", "data.cache_dir=cache", "cluster.time=20m",
)  # fmt: skip


def test_ablate_launch_says_what_it_asks_for_submits_and_returns(box: Box, tmp_path: Path) -> None:
    user_folder(tmp_path)
    dry = box.ablate(*WORDS, "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "3 trials as 3 tasks in 1 array: each 1 CPU, 2G for at most 20m" in dry.stdout
    assert not (tmp_path / "runs").exists()
    done = box.ablate(*WORDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Submitted 3 tasks" in done.stdout
    study = StudyDir(tmp_path / "runs" / "mine")
    box.until(lambda: all_done(study), 120)
    again = box.ablate(*WORDS, cwd=tmp_path)
    assert "Nothing is missing" in again.stdout


TWICE = """\
import sys
from pathlib import Path
from fake_node import launch
from ablate.rundir import StudyDir
print(sum(len(s.tasks) for s in launch(StudyDir(Path(sys.argv[1])))))
"""


def test_two_launches_at_once_run_nothing_twice(box: Box, tmp_path: Path) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {"pause": 0.05} for i in range(4)})
    command = [sys.executable, "-c", TWICE, str(study.path)]
    options = {"env": box.environment, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    both = [subprocess.Popen(command, **options) for _ in range(2)]
    assert sorted(int(p.communicate(timeout=120)[0]) for p in both) == [0, 4]
    box.until(lambda: all_done(study), 60)
    assert [len(t.attempts()) for t in study.trials()] == [1] * 4


@pytest.mark.slow
def test_a_copy_of_a_job_finds_the_trial_held_and_says_so(box: Box, tmp_path: Path) -> None:
    """A requeue racing a retry, a job submitted by hand: one of them runs the trial."""
    study = make_study(tmp_path / "s", {"arm": {"pause": 0.2, "steps": 40}})
    array, *_ = launch(study, heal=False)
    trial = study.trials()[0]
    box.until(lambda: trial.live_state().status == "running", 40)
    for path in (study.path / "submissions").glob("*.json"):
        path.unlink()  # so that the second launch knows of nothing ...
    trial.write_state(trial.state().replace(status="pending"))
    folder = next((study.path / "submitit").iterdir())
    script = next(folder.glob("*_submission.sh"))
    copy = box.run("sbatch", "--parsable", str(script)).strip()  # ... and one by hand
    pickled = folder / f"{array.job_id}_submitted.pkl"
    (folder / f"{copy}_submitted.pkl").write_bytes(pickled.read_bytes())
    box.until(lambda: all_done(study), 60)
    box.until(lambda: box.history(copy)[-1:] == [("COMPLETED", "0:0")], 90)
    assert len(trial.attempts()) == 1


MANY = """\
import sys, time
from pathlib import Path
from ablate.launch.slurm.launch import launch_plan
from ablate.plan import plan_sweep
plan = plan_sweep(sys.argv[1:])
started = time.monotonic()
launch_plan(plan, command="ablate launch ...", hold=True)
print("SECONDS", time.monotonic() - started, len(plan.trials))
"""


@pytest.mark.slow
def test_a_thousand_trials_are_submitted_in_ten_seconds(box: Box, tmp_path: Path) -> None:
    user_folder(tmp_path)
    words = [w.replace("cluster.time=20m", "sweep.seeds=334") for w in WORDS[1:]]
    out = box.run(sys.executable, "-c", MANY, *words, cwd=tmp_path, timeout=300)
    _, seconds, trials = out.splitlines()[-1].split()
    assert int(trials) >= 1000
    assert float(seconds) < 10
