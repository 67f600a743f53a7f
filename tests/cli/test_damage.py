"""Damaged files and odd terminals: one paragraph that names them, never "this should not happen".

A damaged study is refused (exit code 2); a damaged trial is named and stops no other (1).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ablate.analysis import load
from ablate.launch.retrying import RETRIED, chosen, mend_states
from ablate.launch.stitch import stitch
from ablate.rundir import StudyDir

sys.path.insert(0, str(Path(__file__).parent))
from written import checkpoint, end, make_study

Call = Callable[..., tuple[int, str, str]]
READERS = ("status", "report", "spikes", "logs", "sync")


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures take most of a report's time, and say nothing about files."""
    monkeypatch.setattr("ablate.analysis.publish.draw", lambda *_: None)


@pytest.fixture
def study(call: Call, tmp_path: Path) -> StudyDir:
    made = make_study(tmp_path / "runs" / "s", arms=1, seeds=2)
    for trial in made.trials():
        end(trial)
        stitch(trial)
    return made


def words(verb: str) -> list[str]:
    more = {"report": ["--metric", "train/loss"], "sync": ["--dry-run"], "spikes": []}
    return [verb, "s", *more.get(verb, [])]


@pytest.mark.parametrize(
    "text",
    [
        "[]", "null", '{"schema": 1, "tri', '{"trials": [1], "schema": 1}', '{"schema": "1"}',
        '{"schema": 1, "trials": null}', 
        '{"schema": 1, "trials": [{"id": 7, "arm": "a"}]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [*READERS, "cancel", "retry", "prune"])
def test_a_damaged_manifest_is_named(study: StudyDir, call: Call, verb: str, text: str) -> None:
    study.manifest_path.write_text(text)
    code, _, err = call(*words(verb))
    assert code == 2, err
    assert "manifest.json is damaged" in err
    assert "what has run stays" in err


@pytest.mark.parametrize(
    ("name", "text", "namers"),
    [
        ("state.json", "[1]", {"status", "report", "logs"}),
        ("state.json", '{"status": "do', {"status", "report", "logs"}),
        ("state.json", '{"status": "finished"}', {"status", "report", "logs"}),
        ("config.yaml", "hello", {"status", "report", "sync"}),
        ("config.yaml", "", {"status", "report", "sync"}),
        ("config.yaml", "a: [1", {"status", "report", "sync"}),
        ("summary.json", "[3]", {"status", "report", "sync"}),
        ("summary.json", "", {"status", "report", "sync"}),
        ("attempts/1/attempt.json", "null", set(READERS)),
    ],
)
def test_a_damaged_file_of_a_trial_is_named_and_stops_no_other(
    study: StudyDir, call: Call, name: str, text: str, namers: set[str]
) -> None:
    damaged, whole = study.trials()
    (damaged.path / name).write_text(text)
    for verb in READERS:
        code, out, err = call(*words(verb))
        assert code == (verb in namers), f"{verb}: {err}"
        assert whole.id not in err, f"{verb}: {err}"
        if verb in namers:
            assert damaged.id in out + err
            unsealed = name == "summary.json" and "cannot be checked" in err
            assert f"{Path(name).name} is damaged" in out + err or unsealed
        else:
            assert "damaged" not in err, "a verb that reads it not has nothing to say of it"
    kept = load(study.path).trials.set_index("id").loc[whole.id]
    assert pd.isna(kept["damage"])
    assert np.isfinite(kept["train/loss"])


def test_what_is_read_of_the_other_trials_is_what_they_hold(study: StudyDir, call: Call) -> None:
    """Beside one that is damaged. Its rows are shown too, where they can be read."""
    damaged, whole = study.trials()
    before = json.loads(call("spikes", "s", "--json")[1])
    one = json.loads(call("spikes", f"s/{damaged.id}", "--json")[1])
    assert set(before["scores"]) == {damaged.id, whole.id}
    (damaged.path / "attempts" / "1" / "attempt.json").write_text("null")
    code, out, err = call("spikes", "s", "--json")
    assert (code, err.count("attempt.json is damaged")) == (1, 1)
    assert json.loads(out) == before
    code, out, err = call("spikes", f"s/{damaged.id}", "--json")
    assert (code, err.count("attempt.json is damaged")) == (1, 1)
    assert json.loads(out) == one
    code, out, err = call("sync", "s", "--dry-run", "--json")
    assert (code, err.count("attempt.json is damaged")) == (1, 1)
    synced = json.loads(out)
    actions = {run["trial"]: run["action"] for run in synced["runs"]}
    assert actions == {damaged.id: "damaged", whole.id: "pending"}
    assert synced["counts"] == {"damaged": 1, "pending": 1}
    (whole.path / "attempts" / "1" / "attempt.json").write_text("null")
    code, out, err = call("spikes", "s")
    assert code == 1
    for trial in (damaged, whole):
        assert trial.id in out
        assert f"{trial.id}: " in err
    for trial in (damaged, whole):
        (trial.path / "attempts" / "1" / "metrics.jsonl").unlink()
    code, out, err = call("spikes", "s")
    assert (code, out) == (2, ""), "where no rows are there, there is nothing to show"
    assert damaged.id in err
    assert whole.id in err


def test_a_state_that_cannot_be_read_is_what_its_attempt_left(study: StudyDir, call: Call) -> None:
    failed, done = study.trials()
    before = done.state()
    end(failed, "failed", outcome="code", reason="ZeroDivisionError", again=("done",))
    for trial in (failed, done):
        (trial.path / "state.json").write_text('{"status": "do')
    code, out, _ = call("status", "s", "--json")
    assert code == 1
    assert [t["status"] for t in json.loads(out)["trials"]] == ["failed", "done"]
    remedies = [t["damage"].rpartition("). ")[2] for t in json.loads(out)["trials"]]
    assert remedies == ["`ablate retry s` mends it."] * 2
    code, out, err = call("logs", "s")
    assert code == 1
    assert failed.id in out
    assert f"{done.id}: " in err
    assert [t.id for t in chosen(study, RETRIED, None)] == [failed.id]
    said = mend_states(study)
    assert [s.partition(":")[0] for s in said] == [failed.id, done.id]
    assert call("status", "s")[0] == 0
    assert done.state() == before, "written anew"


def test_a_summary_that_was_edited_is_not_believed(study: StudyDir, call: Call) -> None:
    """A metric of the record, which counts then; and a figure that the summary alone has."""
    edited, other = study.trials()
    true = edited.summary() or {}
    edited.summary_path.write_text(json.dumps({**true, "train/loss": 0.01}))
    other.summary_path.write_text(json.dumps({**true, "seconds": 4.0}))
    code, out, err = call("report", "s", "--metric", "train/loss", "--json")
    assert code == 1
    said = {line for line in err.splitlines() if "summary.json was changed" in line}
    assert {t.id for t in (edited, other) for line in said if t.id in line} == {edited.id, other.id}
    assert "summary.json says train/loss 0.01, the trial's record 0.0524" in err
    assert json.loads(out)["arms"][0]["mean"] == pytest.approx(true["train/loss"])
    assert len(json.loads(out)["notes"]) == 2


@pytest.mark.parametrize("sealed", [True, False])
def test_a_summary_that_is_gone_is_named(study: StudyDir, call: Call, sealed: bool) -> None:
    trial, whole = study.trials()
    trial.summary_path.unlink()
    if not sealed:
        record = trial.path / "attempts" / "1" / "attempt.json"
        facts = json.loads(record.read_text())
        del facts["summary"]
        record.write_text(json.dumps(facts))
    code, out, err = call("report", "s", "--metric", "train/loss", "--json")
    assert (code, f"Trial {whole.id}" in err) == (1, False)
    assert f"{trial.id}/summary.json" in err
    assert json.loads(out)["arms"][0]["seeds"] == 2, "its record counts"


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        ('{"train/loss": 1.0, "sec', True),
        ("", False),
        ('{"seconds": 4}', True),
        (None, False),
    ],
)
def test_a_damaged_summary_is_named_by_status_and_written_anew_by_retry(
    study: StudyDir, call: Call, text: str | None, copy: bool
) -> None:
    """From the attempt's own copy; of a trial that older versions ran, from its record."""
    damaged, whole = study.trials()
    before = damaged.summary() or {}
    if not copy:
        (damaged.path / "attempts" / "1" / "summary.json").unlink()
    damaged.summary_path.unlink()
    if text is not None:
        damaged.summary_path.write_text(text)
    code, out, _ = call("status", "s", "--json")
    first, second = json.loads(out)["trials"]
    edited = text == '{"seconds": 4}'  # which the report finds, by the digest
    assert (code, first["status"]) == (not edited, "done")
    assert second["damage"] is None
    if not edited:
        assert "summary.json" in first["damage"]
        assert "`ablate retry s` writes it anew" in first["damage"]
        assert first["loss"] == pytest.approx(0.05), "of the record's last row"
        assert f"damaged: {damaged.id}: " in call("status", "s")[1]
    code, _, err = call("retry", "s")
    assert code == 1, "it had something to mend"
    assert f"{damaged.id}: " in err
    assert whole.id not in err
    if copy:
        assert damaged.summary() == before
    else:
        anew = damaged.summary() or {}
        assert anew.pop("rebuilt") is True
        assert anew["train/loss"] == pytest.approx(before["train/loss"])
        assert anew["seconds"] == pytest.approx(100 * 64 / 640)
    kept = damaged.path / "summary.json.damaged"
    assert (kept.read_text() if kept.exists() else None) == text
    for verb in ("status", "report"):
        assert call(*words(verb))[0] == 0
    assert call("retry", "s")[0] == 0


@pytest.mark.parametrize("name", ["metrics.parquet", "attempts/1/metrics.jsonl", "events.jsonl"])
def test_a_damaged_record_does_not_stop_what_can_be_read(
    study: StudyDir, call: Call, name: str
) -> None:
    path = study.trials()[0].path / name
    before = path.read_text(errors="replace") if name.endswith(".jsonl") else ""
    path.write_text(before + 'PAR1\x00\n{"step": "x"}\n{"step": null}\n[]\n')
    for verb in READERS:
        code, _, err = call(*words(verb))
        assert code == 0, f"{verb}: {err}"


def test_a_record_that_is_gone_altogether_is_named(study: StudyDir, call: Call) -> None:
    trial = study.trials()[0]
    shutil.rmtree(trial.path / "attempts")
    trial.metrics_path.write_text("PAR1")
    code, _, err = call(*words("report"))
    assert code == 1
    assert f"{trial.id}: " in err
    assert "metrics.parquet is damaged" in err
    code, out, err = call(*words("sync"))
    assert code == 1
    assert f"{trial.id}: " in err
    assert "metrics.parquet is damaged" in err
    assert study.trials()[1].id in out


def test_a_broken_study_stops_no_other(study: StudyDir, call: Call, tmp_path: Path) -> None:
    for name, text in (("x", "{"), ("y", '{"schema": 1, "trials": [{"id": "a"}]}')):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "manifest.json").write_text(text)
    old = checkpoint(study.trials()[0].newest_attempt(), 5)
    checkpoint(study.trials()[0].newest_attempt(), 10)
    code, out, err = call("prune", "--all", "--yes")
    assert code == 1
    assert err.count("manifest.json is damaged") == 2
    assert "Deleted 1 checkpoints" in out
    assert not old.exists()
    code, out, _ = call("list", "--json")
    assert code == 1
    assert [s["state"] for s in json.loads(out)["studies"]].count("damaged") == 2


def run(
    command: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.replace("ablate", f"{sys.executable} -m ablate")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_reader_that_has_had_enough_is_no_failure_of_a_trial(
    study: StudyDir, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run("ablate spikes s | true", tmp_path, environment)
    assert done.returncode in (0, 141), "and not 1: some trial failed"
    assert "Traceback" not in done.stderr


def test_output_that_is_closed_goes_nowhere(
    study: StudyDir, tmp_path: Path, environment: dict[str, str]
) -> None:
    done = run("ablate status s >&-", tmp_path, environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_greek_letters_shows_the_rest(
    study: StudyDir, tmp_path: Path, environment: dict[str, str]
) -> None:
    environment["PYTHONIOENCODING"] = "ascii"
    done = run("ablate spikes s", tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert "damage" in done.stdout


def test_a_folder_that_was_deleted_is_said(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    done = run(f"rmdir {folder}; ablate list", folder, environment)
    assert done.returncode == 2
    assert "current folder was deleted" in done.stderr


def test_a_plot_that_cannot_be_written_is_said(call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("step,loss\n1,2\n2,1\n")
    code, _, err = call("spikes", "c.csv", "--plot", os.path.join("nowhere", "x.png"))
    assert code == 2
    assert "nowhere/x.png" in err


def test_steps_beyond_all_numbers_are_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("step,loss\n1,2\n1e300,1\n")
    code, _, err = call("spikes", "c.csv")
    assert code == 2
    assert "no steps" in err


SWEEP = "# @package _global_\nsweep:\n  question: q\n  baseline: [size=tiny]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# @package _global_\nsweep: &a\n  x: *a\n", "holds itself"),
        (SWEEP + "  factors: {norm: [norm=rms]}\n  seeds: 1000000000\n", "at most 10,000"),
    ],
)
def test_sweeps_without_end_are_refused_at_once(
    call: Call, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "endless.yaml").write_text(text)
    code, _, err = call("plan", "sweep=endless")
    assert code == 2
    assert said in err


@pytest.mark.parametrize("text", ["[", '{"arms": 5}', '{"cluster": [1]}', '{"time": "now"}'])
def test_a_damaged_memory_of_the_launch_stops_no_verb(
    study: StudyDir, call: Call, text: str
) -> None:
    (study.path / "launch.json").write_text(text)
    for verb in ("status", "list", "retry"):
        assert call(*(words(verb) if verb != "list" else ["list"]))[0] == 0, verb
