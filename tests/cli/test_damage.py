"""Damaged files and odd terminals: one paragraph, exit code 2, never "this should not happen"."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.launch.stitch import stitch
from ablate.rundir import StudyDir

sys.path.insert(0, str(Path(__file__).parent))
from written import end, make_study

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
    "text", ["[]", "null", '{"schema": 1, "tri', '{"trials": [1], "schema": 1}']
)
@pytest.mark.parametrize("verb", [*READERS, "cancel", "retry", "prune"])
def test_a_damaged_manifest_is_named(study: StudyDir, call: Call, verb: str, text: str) -> None:
    study.manifest_path.write_text(text)
    code, _, err = call(*words(verb))
    assert code == 2, err
    assert "manifest.json is damaged" in err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state.json", "[1]"),
        ("state.json", '{"status": "do'),
        ("config.yaml", "hello"),
        ("config.yaml", ""),
        ("config.yaml", "a: [1"),
        ("summary.json", "[3]"),
        ("attempts/1/attempt.json", "null"),
    ],
)
def test_a_damaged_file_of_a_trial_is_named_or_needless(
    study: StudyDir, call: Call, name: str, text: str
) -> None:
    path = study.trials()[0].path / name
    path.write_text(text)
    named = 0
    for verb in READERS:
        code, _, err = call(*words(verb))
        assert code in (0, 2), err
        if code == 2:
            assert f"{Path(name).name} is damaged" in err, verb
            named += 1
    assert named


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
    assert code == 2
    assert "metrics.parquet is damaged" in err


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
