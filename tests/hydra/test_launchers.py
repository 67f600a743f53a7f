"""Hydra's launchers and sweepers around our trials."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from user_code import BROKEN_NORM, write_asking

from ablate.cli import main
from ablate.rundir import StudyDir

Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("launcher", ["basic", "local", "submitit_local"])
def test_every_launcher_on_this_machine_runs_the_same_trials(
    launcher: str, small: list[str], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """With an option of the user's own, which the launcher's processes must find too."""
    (tmp_path / "conf/position").mkdir(parents=True)
    (tmp_path / "conf/position/mine.yaml").write_text(
        "# @package _global_\nmodel: {rope: true, alibi: false, position: null, rope_theta: 77}\n"
    )
    process = start(*small, "position=mine,alibi", f"hydra/launcher={launcher}", "study=s")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err
    study = StudyDir(tmp_path / "runs/s")
    assert [a["name"] for a in study.manifest()["arms"]] == ["position-mine", "position-alibi"]
    assert [t.state().status for t in study.trials()] == ["done", "done"]


@pytest.mark.parametrize("launcher", ["basic", "local"])
def test_failed_trials_are_failures_with_their_log_and_hurt_no_other(
    launcher: str, call: Call, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "broken_norms.py").write_text(BROKEN_NORM)
    norms = "model.layer_norm_type=broken_norms:Norm,rms"
    code, _, err = call(*small, norms, "seed=0,1", "study=mixed", f"hydra/launcher={launcher}")
    assert code == 1
    assert "2 trials of mixed failed" in err
    assert "this norm is broken" in err
    assert "/log" in err
    states = [t.state().status for t in StudyDir(Path("runs/mixed")).trials()]
    assert sorted(states) == ["done", "done", "failed", "failed"]


def test_a_sweeper_that_optimises_gets_the_objective_of_every_trial(
    small: list[str], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    write_asking(tmp_path)
    process = start(*small, "hydra/sweeper=asking", "hydra/launcher=local", "study=asked")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err
    study = StudyDir(tmp_path / "runs/asked")
    losses = {t.id: t.summary()["val/loss"] for t in study.trials()}  # type: ignore[index]
    assert len(losses) == 3
    words = next(line for line in out.splitlines() if line.startswith("BEST"))
    assert words.split()[1] == "1e-2"
    assert all(str(loss) in words for loss in losses.values())


def test_another_program_is_told_which_launcher_to_take(tmp_path: Path) -> None:
    from ablate.cli.multirun_launchers import launch
    from ablate.errors import AblateError

    with pytest.raises(AblateError, match="submitit_slurm"):
        launch("slurm", lambda config: None, [["a=1"]])


def test_an_illegal_job_is_refused_before_the_first_one_runs(call: Call, small: list[str]) -> None:
    code, _, err = call(*small, "model.n_heads=2,3", "hydra/launcher=local")
    assert code == 2
    assert "n_heads" in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--dry-run"],
        ["hydra/launcher=local"],
        ["hydra/sweeper=ablate", "design=one_factor"],
        ["hydra/sweeper=ablate", "design=one_factor", "--dry-run"],
    ],
    ids=" ".join,
)
def test_what_does_not_fit_this_machine_is_refused_before_anything_is_written(
    words: list[str], call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a dry run, in the same words."""
    monkeypatch.setattr("ablate.train.host.host_memory", lambda: 2**20)
    code, out, err = call(*small, "train.device=cpu", "position=choice(rope,alibi)", "seed=0,1",
                          *words)  # fmt: skip
    assert code == 2
    assert "this machine has 1.0 MiB" in err
    assert err.startswith("ablate train: Arm ")
    assert "Error executing job" not in err + out
    assert not Path("runs").exists()


@pytest.mark.parametrize("launcher", ["basic", "local", "slurm"])
def test_a_multirun_in_several_processes_is_refused(
    launcher: str, call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun starts them: each would run all of it."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    code, _, err = call(*small, "seed=0,1", "parallel=ddp", f"hydra/launcher={launcher}")
    assert code == 2
    assert "WORLD_SIZE" in err
    assert "Start one process" in err
    assert not Path("runs").exists()


def test_a_multirun_keeps_to_its_budget_and_tells_of_its_end(
    call: Call, small: list[str], tmp_path: Path
) -> None:
    """As `ablate launch` does; neither was looked at by the launchers."""
    words = [*small, "seed=0,1", "study=mine", "hydra/launcher=local"]
    words += [f"cluster.notify='echo $STUDY $STATE $DONE >> {tmp_path}/called'"]
    code, _, err = call(*words, "cluster.max_gpu_hours=1")
    assert code == 0, err
    assert (tmp_path / "called").read_text() == "mine done 2\n"
    code, _, err = call(*words, "position=rope", "cluster.max_gpu_hours=1e-9")
    assert code == 2
    assert "max_gpu_hours" in err
    assert "used up" in err


def test_a_multirun_again_takes_what_was_cancelled(call: Call, small: list[str]) -> None:
    words = [*small, "seed=0,1", "study=mine", "hydra/launcher=local"]
    assert call(*words)[0] == 0
    first = StudyDir(Path("runs/mine")).trials()[0]
    first.set_aside()
    assert main(["cancel", "mine"]) == 0
    assert first.state().status == "cancelled"
    assert call(*words)[0] == 0
    assert first.state().status == "done"


# ---- the pains that others report


def test_pain_14_two_multiruns_in_the_same_second_run_every_trial_once(
    small: list[str], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    words = [*small, "position=rope,alibi", "hydra/launcher=local", "study=twice"]
    processes = [start(*words), start(*words)]
    for process in processes:
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, out + err
    study = StudyDir(tmp_path / "runs/twice")
    assert [t.state().status for t in study.trials()] == ["done", "done"]
    assert [len(t.attempts()) for t in study.trials()] == [1, 1]


def test_pain_16_a_multirun_again_runs_what_is_missing_and_overwrites_nothing(
    call: Call, small: list[str]
) -> None:
    import shutil

    words = [*small, "position=rope,alibi,none", "study=again", "hydra/launcher=local"]
    assert call(*words)[0] == 0
    study = StudyDir(Path("runs/again"))
    gone, *kept = study.trials()
    before = {t.id: t.metrics_path.stat().st_mtime_ns for t in kept}
    shutil.rmtree(gone.path)
    code, out, _ = call(*words, "--dry-run")
    assert code == 0
    assert "1 of 3 trials would run" in out
    assert call(*words)[0] == 0
    assert gone.state().status == "done"
    assert {t.id: t.metrics_path.stat().st_mtime_ns for t in kept} == before
    more = [w.replace("alibi,none", "alibi,none,learned") for w in words]
    assert call(*more)[0] == 0  # a sweep that grew: the old trials keep their folders
    assert {t.id: t.metrics_path.stat().st_mtime_ns for t in kept} == before
    assert len(study.trials()) == 4


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["hydra/launcher=basic,local", "seed=0,1"], "cannot be swept"),
        (["+launch=fast,slow"], "selects hydra/launcher=submitit_local"),
        (["seed=0,1", "hydra/launcher=local", "hydra.sweeper.max_batch_size=1"], "at once"),
        (["seed=0,1", "cluster=slurm"], "Write hydra/launcher=slurm"),
        (["seed=0,1", "cluster=slurm,local"], "Write hydra/launcher=slurm"),
        (["seed=0,1", "cluster=local", "hydra/launcher=slurm"], "Write cluster=slurm"),
        (["seed=0,1", "hydra/launcher=slrum"], "Did you mean slurm?"),
    ],
)
def test_pain_19_the_launcher_that_is_written_is_the_one_that_is_used_or_refused(
    words: list[str], word: str, call: Call, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "conf/launch").mkdir(parents=True)
    (tmp_path / "conf/launch/fast.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hydra/launcher: submitit_local\n"
    )
    (tmp_path / "conf/launch/slow.yaml").write_text("# @package _global_\nseed: 3\n")
    code, _, err = call(*small, *words)
    assert code == 2, err
    assert word in err
    assert not Path("runs").exists()


def test_pain_19_a_dry_run_names_trials_and_launcher_and_writes_nothing(
    call: Call, small: list[str]
) -> None:
    code, out, err = call(*small, "position=rope,alibi", "seed=0,1", "--dry-run")
    assert code == 0, err
    assert out.count("run   new") == 4
    assert "hydra/launcher=basic" in out
    assert not Path("runs").exists()
    words = ["hydra/sweeper=ablate", "hydra/launcher=local", "design=ladder"]
    code, out, err = call(*small, "position=choice(rope)", "seed=0,1", *words, "--dry-run")
    assert code == 0, err
    assert out.count("run   new") == 4
    assert out.count("+position-rope-s") == 2, "as the design names the arm"
    assert not Path("runs").exists()


def test_pain_19_a_dry_run_needs_no_slurm(
    call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its commands are not installed; one whose controller is silent is said likewise."""
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["hydra/launcher=slurm", "cluster.time=10m", "cluster.pack=2"]
    code, out, err = call(*small, "seed=0,1", *words, "--dry-run")
    assert code == 0, err
    assert out.count("run   new") == 2
    assert "without a look at limits and queue" in out
    assert "2 trials as 1 task, 2 in each" in out
    assert not Path("runs").exists()


def test_a_trial_that_slurm_runs_no_more_is_waited_for_a_while_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two incarnations of a job SLURM says NODE_FAIL; and unknown is not lost."""
    from ablate.cli import multirun_slurm
    from ablate.launch.trial_view import TrialView

    clock = [0.0]
    monkeypatch.setattr(multirun_slurm.time, "monotonic", lambda: clock[0])
    patience = multirun_slurm.Patience()
    view = TrialView(id="a", arm="a", seed=0, status="preempted", job_id="7_0")

    def after(seconds: float, word: str | None, answers: bool = True) -> str | None:
        clock[0] += seconds
        return patience.over(view.replace(slurm_state=word), answers)

    assert after(0, "NODE_FAIL") is None
    assert after(50, "NODE_FAIL") is None
    assert after(50, "PENDING") is None
    assert after(999, "PENDING") is None
    assert after(1, "TIMEOUT") is None
    assert "TIMEOUT" in (after(100, "TIMEOUT") or "")
    patience = multirun_slurm.Patience()
    assert after(1, None, answers=False) is None
    assert after(9999, None, answers=False) is None
    assert after(1, None) is None
    assert "knows no job 7_0" in (after(500, None) or "")
