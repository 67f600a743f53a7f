"""`ablate sync`: one run a trial, each step once, however often and however it was cut short."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in import Run, Server
from tracked import append, lengthen, losses, make_study, train

from ablate.cli import main
from ablate.rundir import StudyDir
from ablate.track.facts import facts_of
from ablate.track.offline import read_offline_runs


def sync(study: StudyDir, *words: str) -> int:
    return main(["sync", str(study.path), *words])


def counts(study: StudyDir, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, int]:
    capsys.readouterr()
    assert sync(study, "--json", *words) == 0
    return json.loads(capsys.readouterr().out)["counts"]


def one_paragraph(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    assert "Traceback" not in said
    return said


def run_of(server: Server, study: StudyDir, index: int) -> Run:
    return server.runs[facts_of(study.trials()[index]).id]


def is_whole(server: Server, study: StudyDir) -> bool:
    for trial in study.trials():
        run = server.runs[facts_of(trial).id]
        assert run.values("train/loss") == losses(trial)
        assert run.steps() == sorted(set(run.steps())), "a step twice, or out of order"
        assert run.conflicts == 0
    return len(server.runs) == len(study.trials())


def test_a_study_becomes_one_run_a_trial_with_all_that_people_compare_by(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path, seeds=2))
    assert counts(study, capsys) == {"created": 4}
    assert is_whole(server, study)
    run, config = run_of(server, study, 2), run_of(server, study, 2).plain_config()
    assert (run.group, run.job_type, run.state) == ("hello", "rope", "finished")
    assert run.display_name == study.trials()[2].id
    assert {"position=rope", "mine"} <= set(run.tags)
    assert config["train"] == {"steps": 30}, "nested"
    assert config["factor.position"] == "rope"
    assert (config["arm"], config["seed"], config["baseline"]) == ("rope", 0, False)
    assert run_of(server, study, 0).plain_config()["baseline"] is True
    assert run.summary["val/bpb"] == pytest.approx(5 / 30)
    assert run.summary["status"] == "done"
    assert run.summary["verdict"] == "equivalent"
    assert run.summary["verdict/difference"] == 0
    metrics = run.config["_wandb"]["value"]["m"]
    assert "tokens" in json.dumps(metrics), "tokens are the x-axis"
    assert not server.unknown


def test_done_again_it_sends_nothing(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path))
    assert sync(study) == 0
    starts = [run.starts for run in server.runs.values()]
    assert counts(study, capsys) == {"unchanged": 2}
    assert [run.starts for run in server.runs.values()] == starts
    assert is_whole(server, study)


def test_a_study_that_went_on_is_continued(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path, signal_at=13)
    train(study)
    assert counts(study, capsys) == {"created": 2}
    assert all("verdict" not in run.summary for run in server.runs.values()), "it is unfinished"
    assert {run.state for run in server.runs.values()} == {"preempted"}
    assert {len(run.history) for run in server.runs.values()} == {13}
    train(study)
    assert counts(study, capsys) == {"continued": 2}
    assert is_whole(server, study)
    assert {run.state for run in server.runs.values()} == {"finished"}


def test_a_change_of_the_labels_is_passed_on_and_no_row_is_sent_again(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path))
    assert sync(study) == 0
    lines = [list(run.history) for run in server.runs.values()]
    manifest = study.manifest()
    manifest["arms"][1]["levels"]["norm"] = "rms"
    study.write_manifest(manifest)
    assert counts(study, capsys) == {"updated": 1, "unchanged": 1}
    assert [list(run.history) for run in server.runs.values()] == lines
    assert run_of(server, study, 1).plain_config()["factor.norm"] == "rms"
    assert "norm=rms" in run_of(server, study, 1).tags


@pytest.mark.parametrize("at", ["graphql-6", "file_stream-1", "file_stream-3", "file_stream-5"])
def test_killed_in_the_middle_and_done_again_each_step_is_there_once(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: str,
) -> None:
    # Often, in small pieces: a history takes several requests, so it is cut inside. One comes a
    # second: on a fast machine it takes many rows until the fifth.
    monkeypatch.setenv("WANDB__FILE_STREAM_TRANSMIT_INTERVAL", "1")
    study = train(make_study(tmp_path, steps=20))
    for trial in study.trials():
        lengthen(trial, to=9000 if at == "file_stream-5" else 3000)
    kind, _, number = at.partition("-")
    seen = 0
    process = subprocess.Popen(
        [sys.executable, "-m", "ablate", "sync", str(study.path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def kill(what: str) -> None:
        nonlocal seen
        seen += what == kind
        if seen == int(number) and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # wandb's own process too

    server.on_post = kill
    assert process.wait(60) == -signal.SIGKILL
    server.on_post = lambda what: None
    held = {name: len(run.history) for name, run in server.runs.items()}
    print("rows held when it was killed:", held)
    assert sync(study) == 0
    assert is_whole(server, study)
    assert {run.summary["status"] for run in server.runs.values()} == {"done"}
    assert counts(study, capsys) == {"unchanged": 2}


@pytest.mark.parametrize("rows", [1, 17, 29, 30])
def test_whatever_part_a_server_took_the_rest_is_sent(
    tmp_path: Path, server: Server, rows: int
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    assert sync(study) == 0
    run = run_of(server, study, 0)
    del run.history[rows:]
    run.summary, run.exit_codes = {"train/loss": 1}, []
    assert sync(study) == 0
    assert is_whole(server, study)
    assert run.summary["status"] == "done"


def test_offline_it_is_one_fresh_run_a_trial_and_done_again_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path, signal_at=13)
    train(study), train(study)
    assert counts(study, capsys, "--offline") == {"created": 2}
    for trial in study.trials():
        (record,) = read_offline_runs(trial.path / "wandb")
        assert {r["_step"]: r["train/loss"] for r in record.rows} == losses(trial)
        assert len(record.rows) == 30
        assert record.id == facts_of(trial).id
        assert record.config["factor.position"] in ("learned", "rope")
        assert record.summary["verdict"] in ("baseline", "undecided")
        assert record.state == "finished"
    files = sorted(study.path.rglob("*.wandb"))
    assert counts(study, capsys, "--offline") == {"unchanged": 2}
    assert sorted(study.path.rglob("*.wandb")) == files
    manifest = study.manifest()
    manifest["arms"][1]["levels"]["norm"] = "rms"
    study.write_manifest(manifest)
    assert counts(study, capsys, "--offline") == {"replaced": 1, "unchanged": 1}
    assert len(list(study.path.rglob("*.wandb"))) == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.yaml", "a: [1"), ("summary.json", "[3]"), ("attempts/1/attempt.json", "null")],
)
def test_a_damaged_trial_is_named_and_the_others_are_mirrored(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    study = train(make_study(tmp_path))
    damaged, whole = study.trials()
    (damaged.path / name).write_text(text)
    assert sync(study, "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["counts"] == {"created": 1, "damaged": 1}
    assert f"{damaged.id}: " in err
    assert f"{Path(name).name} is damaged" in err
    assert list(server.runs) == [facts_of(whole).id]
    assert run_of(server, study, 1).values("train/loss") == losses(whole)


def test_an_offline_run_that_wandb_has_sent_is_not_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    assert sync(study, "--offline") == 0
    (log,) = study.path.rglob("*.wandb")
    Path(f"{log}.synced").touch()  # what `wandb sync` leaves
    (study.trials()[0].path / "summary.json").write_text('{"val/bpb": 3}')
    assert counts(study, capsys, "--offline") == {"skipped": 1}


def test_what_a_server_has_is_not_written_offline_as_well(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    assert sync(study, "--offline") == 0
    assert len(list(study.path.rglob("*.wandb"))) == 1
    assert sync(study) == 0
    assert not list(study.path.rglob("*.wandb")), "`wandb sync` would send it a second time"
    assert counts(study, capsys, "--offline") == {"skipped": 1}


def test_a_record_that_starts_afresh_is_another_run(tmp_path: Path, server: Server) -> None:
    study = train(make_study(tmp_path, arms=("base",), steps=20))
    assert sync(study) == 0
    (trial,) = study.trials()
    trial.set_aside()
    train(study)
    assert sync(study) == 0
    assert [len(run.history) for run in server.runs.values()] == [20, 20]


def test_a_study_keeps_its_runs_wherever_its_folder_lies(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    assert sync(study) == 0
    moved = StudyDir(study.path.rename(tmp_path / "elsewhere"))
    assert counts(moved, capsys) == {"unchanged": 1}
    assert len(server.runs) == 1


def test_where_nothing_can_be_written_it_is_mirrored_all_the_same(
    tmp_path: Path, server: Server
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    (study.trials()[0].path / "wandb").write_text("in the way: no folder can be made here")
    before = sorted(study.path.rglob("*"))
    assert sync(study) == 0
    assert is_whole(server, study)
    assert sorted(study.path.rglob("*")) == before


def test_two_at_once_write_no_step_twice(tmp_path: Path, server: Server) -> None:
    study = train(make_study(tmp_path))
    command = [sys.executable, "-m", "ablate", "sync", str(study.path)]
    both = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in both].count(0) >= 1
    assert sync(study) == 0
    assert is_whole(server, study)


def test_a_dry_run_asks_nobody(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path)
    assert sync(study, "--dry-run") == 0
    assert "it has not begun" in capsys.readouterr().out
    train(study)
    assert counts(study, capsys, "--dry-run") == {"pending": 2}
    assert not server.queries
    assert not server.runs


def test_rows_that_are_no_numbers_arrive(tmp_path: Path, server: Server) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    (trial,) = study.trials()
    append(trial, {"step": 31, "tokens": 310, "train/loss": float("nan")})
    assert sync(study) == 0
    assert math.isnan(run_of(server, study, 0).values("train/loss")[31])


def test_without_a_key_it_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    assert sync(study) == 2
    said = one_paragraph(capsys)
    assert "wandb login" in said
    assert "--offline" in said


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_is_one_paragraph(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    study = train(make_study(tmp_path, arms=("base",)))
    server.refuse = status
    assert sync(study) == 2
    assert "Check the key" in one_paragraph(capsys)


def test_a_server_that_is_away_is_one_paragraph(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("ablate.track.remote.SECONDS", 2)  # of 20 that it is asked again and again
    study = train(make_study(tmp_path, arms=("base",)))
    assert sync(study) == 1
    assert "run the same command again" in one_paragraph(capsys)


@pytest.mark.parametrize("project", ["a/b", "", "x" * 129, "100%"])
def test_a_project_that_wandb_would_not_take_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], project: str
) -> None:
    study = make_study(tmp_path)
    assert sync(study, "--dry-run", "--project", project) == 2
    assert "--project" in capsys.readouterr().err
