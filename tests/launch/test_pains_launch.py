"""Pains of launching that need no cluster; numbered as in the list that the design was written
against. Those that need SLURM are in tests/slurm/test_pains.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_training import make_study, make_trial

from ablate.config.schema import ClusterConfig
from ablate.errors import StudyError, TrialHeldError
from ablate.launch.freeze import freeze
from ablate.launch.local import run_missing
from ablate.launch.pool import Pool
from ablate.launch.slurm.request import describe
from ablate.plan import plan_sweep
from ablate.rundir import StudyDir, TrialDir

SCRIPT = Path(__file__).parent / "fake_launch.py"


class Seen:
    """A watcher that remembers the order of things."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.ends: list[str] = []

    def started(self, trial: TrialDir) -> None:
        self.starts.append(trial.id)

    def ended(self, trial: TrialDir, state: object) -> None:
        self.ends.append(trial.id.rpartition("-s0")[0])

    def waiting(self, trials: object) -> None: ...
    def stopping(self, reason: str) -> None: ...
    def tick(self, running: object) -> None: ...


def run_here(study: StudyDir, **options: object) -> Seen:
    seen = Seen()
    with Pool("fake_training:run") as pool:
        run_missing(study.trials(), pool, workers=2, watcher=seen, **options)
    return seen


def test_pain_14_of_twenty_that_start_in_the_same_instant_one_runs_the_trial(
    tmp_path: Path,
) -> None:
    """Two launches in one second wrote into the same folders."""
    trial = make_trial(tmp_path)
    ready, go = os.pipe()
    stay, leave = os.pipe()
    children = []
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.close(leave)
            os.read(ready, 1)  # all wait for the pipe to close
            try:
                trial.acquire()
                os.read(stay, 1)  # one that died would be followed by another
                os._exit(0)
            except TrialHeldError:
                os._exit(4)
            except BaseException:
                os._exit(1)
        children.append(pid)
    for end in (ready, go, stay):
        os.close(end)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(codes) < 19 and time.monotonic() < deadline:
        for pid in set(children) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.close(leave)
    for pid in set(children) - set(codes):
        codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert sorted(codes.values()) == [0] + [4] * 19
    assert [a.number for a in trial.attempts()] == [1]


def test_pain_14_twenty_launches_at_once_run_nothing_twice(tmp_path: Path) -> None:
    trials = [make_trial(tmp_path, f"arm{i}", steps=20, pause=0.01) for i in range(20)]
    study = make_study(tmp_path, trials)
    command = [sys.executable, str(SCRIPT), str(study.path), "2"]
    launches = [subprocess.Popen(command, start_new_session=True) for _ in range(20)]
    assert [p.wait(300) for p in launches] == [0] * 20
    assert [len(t.attempts()) for t in study.trials()] == [1] * 20
    for trial in study.trials():
        assert [row["step"] for row in trial.stitched()] == list(range(1, 21))


def test_pain_16_launched_again_exactly_what_is_missing_runs(tmp_path: Path) -> None:
    """Resuming a sweep restarted its numbering, and overwrote the results."""
    study = make_study(tmp_path, [make_trial(tmp_path, f"arm{i}", steps=5) for i in range(8)])
    assert len(run_here(study).starts) == 8
    trials = study.trials()
    lost, kept = trials[2:5], [*trials[:2], *trials[5:]]
    before = {p: p.stat().st_mtime_ns for t in kept for p in t.path.rglob("*")}
    for trial in lost:
        config = trial.config()
        for path in sorted(trial.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        trial.create(config, 5)
    assert sorted(run_here(study).starts) == sorted(t.id for t in lost)
    assert {p: p.stat().st_mtime_ns for t in kept for p in t.path.rglob("*")} == before


SWEEP = """\
# @package _global_
sweep:
  question: Does it help?
  baseline: [size=tiny, train.steps=6]
  design: {design}
  factors:
    position: [position=rope, position=alibi]
    norm: [norm=rms]
  seeds: 2
"""


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    return tmp_path / "sweeps"


def test_pain_16_another_configuration_under_the_same_name_is_refused(sweeps: Path) -> None:
    (sweeps / "mine.yaml").write_text(SWEEP.format(design="grid"))
    study = freeze(plan_sweep(["sweep=mine"]))
    before = study.manifest()
    with pytest.raises(StudyError, match="frozen"):
        freeze(plan_sweep(["sweep=mine", "train.batch_size=3"]))
    assert study.manifest() == before


@pytest.mark.parametrize(("design", "arms"), [("grid", 3), ("one_factor", 4)])
def test_pain_17_a_design_is_an_object_and_not_a_product(
    sweeps: Path, design: str, arms: int
) -> None:
    """Paired, united and constrained sweeps could not be written down."""
    (sweeps / "mine.yaml").write_text(SWEEP.format(design=design))
    plan = plan_sweep(["sweep=mine"])
    assert len(plan.arms) == arms
    assert len(plan.trials) == 2 * arms
    assert len({t.fingerprint for t in plan.trials}) == len(plan.trials)


def test_pain_19_what_will_be_asked_for_is_said_before_it_is_asked_for() -> None:
    """A swept configuration selected a launcher that was not the one used."""
    small = ClusterConfig(name="slurm", gpus=1, cpus=4, memory="8G", time="2h", partition="gpu")
    large = ClusterConfig(name="slurm", gpus=1, cpus=8, memory="64G", time="12h", account="lab")
    clusters = {f"a-s{i}": small for i in range(12)} | {f"b-s{i}": large for i in range(2)}
    assert describe(clusters, array=5).text() == (
        "12 trials as 12 tasks in 3 arrays: each 4 CPUs, 1 GPU, 8G for at most 2h; partition gpu\n"
        "2 trials as 2 tasks in 1 array: each 8 CPUs, 1 GPU, 64G for at most 12h; the default "
        "partition, account lab\n"
        "14 trials, 14 tasks: at most 48 GPU-hours and 288 CPU-hours, if every task runs to its "
        "time limit"
    )


def test_pain_12_arms_that_need_the_same_share_an_array() -> None:
    small, large = (ClusterConfig(name="slurm", gpus=g, pack=g or 1) for g in (0, 1))
    request = describe({"a": small, "b": large, "c": small}, array=1000)
    assert [c.trials for c in request.classes] == [["a", "c"], ["b"]]


def test_pain_20_a_slow_arm_does_not_delay_the_others(tmp_path: Path) -> None:
    """Batches of a search waited for their slowest member, and GPUs idled. Learning rates of an
    arm are trials like any other here, and a worker that is free takes the next one.
    """
    trials = [make_trial(tmp_path, "slow", steps=100, pause=0.05)]
    trials += [make_trial(tmp_path, f"lr{i}", steps=5) for i in range(6)]
    seen = run_here(make_study(tmp_path, trials))
    assert seen.ends.index("slow") >= 2, "in batches of two, one other at most would be over"
    assert len(seen.ends) == 7


@pytest.mark.parametrize(
    ("how", "starts"), [("code", 1), ("config", 1), ("oom", 1), ("diverged", 1)]
)
def test_pain_21_a_deterministic_crash_is_not_tried_again(
    tmp_path: Path, how: str, starts: int
) -> None:
    trial = make_trial(tmp_path, "bad", fail_at=3, how=how, always=True)
    study = make_study(tmp_path, [trial])
    run_here(study)
    run_here(study)
    assert len(trial.attempts()) == starts


def test_pain_21_what_the_machine_kills_is_tried_again_within_a_budget(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, "cursed", kill_at=5, always=True)
    run_here(make_study(tmp_path, [trial]))
    assert len(trial.attempts()) == 3


def test_pain_31_what_failed_is_known_from_the_manifest_and_run_again_when_asked(
    tmp_path: Path,
) -> None:
    """A grid on a server did not run its failed runs again."""
    good, bad = make_trial(tmp_path, "good"), make_trial(tmp_path, "bad", fail_at=3)
    study = make_study(tmp_path, [good, bad])
    run_here(study)
    assert [t.state().status for t in study.trials()] == ["done", "failed"]
    assert run_here(study, again=("failed",)).starts == [bad.id]
    assert [t.state().status for t in study.trials()] == ["done", "done"]


def test_pain_24_killed_between_checkpoints_each_step_is_there_once(tmp_path: Path) -> None:
    """After a resume, steps were dropped or doubled."""
    whole, killed = make_trial(tmp_path, "whole", steps=50), make_trial(
        tmp_path, "killed", steps=50, kill_at=37
    )  # fmt: skip
    run_here(make_study(tmp_path, [whole, killed]))
    assert len(killed.attempts()) == 2
    assert killed.attempts()[1].record()["resumed"] == {"attempt": 1, "step": 30}
    rows = [[(r["step"], r["train/loss"]) for r in t.stitched()] for t in (whole, killed)]
    assert rows[0] == rows[1]
    assert [step for step, _ in rows[1]] == list(range(1, 51))
