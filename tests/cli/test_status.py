"""`status` and `list`: one screen, any width, any size, any crash."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli.board import Screen, board
from ablate.cli.overview import study_status
from ablate.cli.plan_view import console
from ablate.cli.running import conclude
from ablate.launch.slurm.scheduler import Scheduler
from ablate.rundir import STATUSES, Submission

sys.path.insert(0, str(Path(__file__).parent))
from written import checkpoint, end, make_study, mixed, start

Call = Callable[..., tuple[int, str, str]]

KEYS = {"id", "arm", "seed", "status", "step", "steps", "attempt", "reason"}
VIEW = {"loss", "eta", "node", "job_id", "slurm_state", "outcome"}


def test_status_tells_step_loss_time_left_node_attempts_and_the_last_error(
    call: Call, tmp_path: Path
) -> None:
    mixed(tmp_path / "runs" / "mine")
    code, out, _ = call("status", "mine", "--json")
    status = json.loads(out)
    assert code == 0
    assert set(status["counts"]) == set(STATUSES)
    assert all(set(t) >= KEYS | VIEW for t in status["trials"])
    by = [t["status"] for t in status["trials"]]
    assert by == ["done", "failed", "diverged", "running", "running", "preempted", *["pending"] * 3]
    running = status["trials"][4]
    assert (running["step"], running["node"], running["attempt"]) == (30, "n7", 1)
    assert running["loss"] == pytest.approx(5 / 30)
    assert running["eta"] == pytest.approx(70 * 64 / 640)
    code, out, _ = call("status", "mine")
    assert "ZeroDivisionError" in out
    assert "7 s" in out
    assert "n7" in out


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("arms", [3, 100])
def test_status_survives_every_width(tmp_path: Path, width: int, arms: int) -> None:
    status = study_status(mixed(tmp_path / "mine", arms, 3))
    for everything in (False, True):
        lines = board(status, Screen(width, False), everything=everything)
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert "failed" in text
        assert "20/100" in text
        assert "arm1" in text


@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("132", 132), ("7", 80), ("x", 80)])
def test_a_pipe_is_80_columns_wide_or_as_columns_says_and_a_reason_is_whole(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    """The same for every verb (`ablate plan`: tests/plan/test_cli.py)."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    reason = " ".join(["ValueError: a message that takes more than one line"] * 5)
    question = " ".join(["Which of the arms is it?"] * 12)
    study = make_study(tmp_path / "runs" / "mine", 1, 1, question=question)
    end(study.trials()[0], "failed", 7, outcome="code", reason=reason)
    assert console().width == width
    for verb in ("status", "list"):
        code, out, _ = call(verb, *(["mine"] if verb == "status" else []))
        assert code == 0
        assert width - 40 < max(map(len, out.splitlines())) <= width, verb
    out = " ".join(call("status", "mine")[1].split())
    assert reason in out
    assert question in out


def test_a_long_id_is_whole_and_can_be_pasted(tmp_path: Path) -> None:
    """In a narrow terminal the rest stands below it; on a screen that is redrawn it is cut."""
    status = study_status(mixed(tmp_path / "mine"))
    long = "position-rope_500k+norm-rms+qk_norm-on-s0-0123abcd"
    status["trials"][3]["id"] = long
    lines = board(status, Screen(50, False))
    assert long in lines
    below = lines[lines.index(long) + 1]
    assert "running" in below
    assert "20/100" in below
    assert len(below) <= 50
    assert max(map(len, lines)) <= 50
    trial = status["trials"][3]
    trial.update(status="preempted", reason="stopped by SIGTERM, and it goes on from step 20")
    solid = " ".join(" ".join(board(status, Screen(50, False))).split())
    assert f"on {trial['node']} attempt {trial['attempt']} {trial['reason']}" in solid
    redrawn = board(status, Screen(50, False, rows=40))
    assert max(map(len, redrawn)) <= 50
    assert long not in redrawn


def test_what_was_given_up_is_not_done_and_a_hundred_per_cent_is_when_all_is(
    tmp_path: Path,
) -> None:
    study = make_study(tmp_path / "mine", 1, 2)
    one, other = study.trials()
    end(one, "cancelled", 10)
    start(other, 99)
    assert "54 % of all steps" in board(study_status(study), Screen(80, False))[2]
    one.write_state(one.state().replace(status="done"))
    text = board(study_status(study), Screen(80, False))[2]
    assert "99 % of all steps" in text


def test_a_large_study_is_summed_up_by_arm_with_what_is_interesting(
    call: Call, tmp_path: Path
) -> None:
    study = mixed(tmp_path / "runs" / "mine", 20, 10)
    out = call("status", "mine")[1]
    assert len(out.splitlines()) < 50
    assert study.trials()[4].id in out, "it runs"
    assert study.trials()[150].id not in out, "it waits like 190 others"
    assert "10 pending" in out
    assert study.trials()[150].id in call("status", "mine", "--all")[1]


def test_status_of_a_thousand_trials_takes_less_than_a_second(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of processor time, which a busy machine does not stretch."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    study = make_study(tmp_path / "runs" / "big", 100, 10)
    for trial in study.trials()[:300]:
        end(trial, step=3)
    command = [sys.executable, "-m", "ablate", "status", "big"]
    assert min(_seconds(command, tmp_path, environment) for _ in range(2)) < 1.0


def _seconds(command: list[str], cwd: Path, environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_pipe_that_closes_early_is_no_error(tmp_path: Path, environment: dict[str, str]) -> None:
    mixed(tmp_path / "runs" / "mine", 40, 10)
    command = f"{sys.executable} -m ablate status mine --all | head -1; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.startswith("mine")
    assert done.stderr == ""


def test_a_study_that_moved_still_tells_of_itself(call: Call, tmp_path: Path) -> None:
    study = mixed(tmp_path / "runs" / "mine")
    before = json.loads(call("status", "mine", "--json")[1])
    shutil.move(study.path, tmp_path / "elsewhere")
    after = json.loads(call("status", str(tmp_path / "elsewhere"), "--json")[1])
    assert [t["status"] for t in after["trials"]] == [t["status"] for t in before["trials"]]
    assert "log of" in call("logs", str(tmp_path / "elsewhere"))[1]


def test_a_study_that_is_over_is_not_said_to_be_without_an_answer_of_slurm(tmp_path: Path) -> None:
    """There is nothing left to ask for."""
    study = make_study(tmp_path / "mine", 1, 1)
    (trial,) = study.trials()
    study.add_submission(Submission(job_id="7", tasks=[[trial.id]]))
    end(trial)
    status = study_status(study, Scheduler())
    assert status["scheduler"] == "answers"
    assert not any("SLURM" in line for line in board(status, Screen(100, False)))


def test_a_damaged_trial_hides_no_other(call: Call, tmp_path: Path) -> None:
    study = mixed(tmp_path / "runs" / "mine")
    (study.trials()[0].path / "state.json").write_text("{")
    status = json.loads(call("status", "mine", "--json")[1])
    assert "damaged" in status["trials"][0]["reason"]
    assert status["counts"]["running"] == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["status", "mine"],
        ["status", "mine", "--json"],
        ["list"],
        ["logs", "mine"],
        ["watch", "over"],
        ["cancel", "over"],
        ["prune", "mine"],
    ],
    ids=" ".join,
)
def test_the_verbs_of_a_login_node_import_nothing_heavy(
    tmp_path: Path, environment: dict[str, str], argv: list[str]
) -> None:
    mixed(tmp_path / "runs" / "mine")
    for trial in make_study(tmp_path / "runs" / "over", 1, 1).trials():
        end(trial)
    code = (
        "import sys\nfrom ablate.cli import main\ncode = main(sys.argv[1:])\n"
        "print(code, *{m.split('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    code, *names = done.stderr.strip().splitlines()[-1].split()
    assert code == "0"
    assert not set(names) & {
        "torch",
        "pandas",
        "hydra",
        "omegaconf",
        "numpy",
        "pyarrow",
        "submitit",
        "wandb",
    }


# ---- watch


def test_list_shows_state_and_question_newest_first(call: Call, tmp_path: Path) -> None:
    old = make_study(tmp_path / "runs" / "old", 1, 1)
    end(old.trials()[0])
    os.utime(old.manifest_path, (1, 1))
    mixed(tmp_path / "runs" / "new")
    out = call("list")[1]
    assert out.index("new") < out.index("old")
    entries = json.loads(call("list", "--json")[1])["studies"]
    assert [(e["study"], e["state"]) for e in entries] == [("new", "running"), ("old", "done")]
    assert entries[0]["question"] == "Which arm?"


def test_list_goes_by_the_day_that_it_shows_and_knows_a_study_from_a_folder(
    call: Call, tmp_path: Path
) -> None:
    """An extension writes the manifest anew, and makes no study younger."""
    make_study(tmp_path / "runs" / "young", 1, 1, created=2000.0)
    make_study(tmp_path / "runs" / "extended", 1, 1, created=1000.0)
    entries = json.loads(call("list", "--json")[1])["studies"]
    assert [e["study"] for e in entries] == ["young", "extended"]
    code, _, err = call("list", "young")
    assert code == 2
    assert "ablate status young" in err
    assert "ablate status" not in call("list", "nothing")[2]


def test_checkpoints_do_not_disturb_the_status(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    attempt = start(study.trials()[0], 5)
    checkpoint(attempt, 5)
    assert json.loads(call("status", "mine", "--json")[1])["trials"][0]["step"] == 5


def test_commands_that_are_shown_can_be_pasted_whatever_the_folder_is_called(
    call: Call,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ablate.analysis.publish.draw", lambda *_: None)
    study = mixed(tmp_path / "runs" / "my study")
    (study.trials()[0].path / "state.json").write_text("{")
    (study.trials()[0].path / "summary.json").write_text("{")
    words = ["--metric", "train/loss", "--partial"]
    (study.trials()[1].path / "attempts" / "1" / "attempt.json").write_text("{")
    shown = [call("status", "my study"), call("report", "my study", *words)]
    conclude(study, None)
    text = " ".join(f"{out} {err}" for _, out, err in shown) + capsys.readouterr().err
    text += next(study.path.glob("report*/report.md")).read_text()
    told = re.findall(r"ablate (\w+) ('my study'|my study)", " ".join(text.split()))
    assert {"retry", "logs", "report"} <= {verb for verb, _ in told}
    assert {name for _, name in told} == {"'my study'"}
