"""`cancel`, `retry` and `prune`: each says what it does, and takes nothing that is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.errors import TrialHeldError
from ablate.launch.retrying import chosen, reopen
from ablate.rundir import StudyDir

sys.path.insert(0, str(Path(__file__).parent))
from written import checkpoint, elsewhere, end, make_study, start

Call = Callable[..., tuple[int, str, str]]


def statuses(study: StudyDir) -> list[str]:
    return [t.live_state().status for t in study.trials()]


# ---- cancel


def test_cancel_ends_what_has_not_ended_and_leaves_the_rest(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 2, 2)
    done, gone, runs, waits = study.trials()
    end(done)
    start(gone, 10, age=500)
    start(runs, 10, age=1)
    assert call("cancel", "mine", "--dry-run")[1].split() == [gone.id, runs.id, waits.id]
    assert statuses(study) == ["done", "preempted", "running", "pending"]
    code, out, _ = call("cancel", "mine")
    assert code == 0
    assert "2 cancelled, 1 save and stop at their next step, 1 had ended before" in out
    assert statuses(study) == ["done", "cancelled", "running", "cancelled"]
    assert [t.cancel_asked() for t in study.trials()] == [False, True, True, True]
    assert call("cancel", "mine")[0] == 0, "twice does no harm"


def test_cancel_takes_trials_by_a_part_of_their_names(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 2, 2)
    assert call("cancel", "mine", "arm1-s0", "arm0-s1")[0] == 0
    assert statuses(study) == ["pending", "cancelled", "cancelled", "pending"]
    code, _, err = call("cancel", "mine", "arm7")
    assert code == 2
    assert "arm7" in err


def running_process(study: StudyDir) -> subprocess.Popen[str]:
    """A process that holds the lease of the first trial and says when it is told to stop."""
    code = (
        "import signal, sys, time\nfrom pathlib import Path\nfrom ablate.rundir import StudyDir\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "StudyDir(Path(sys.argv[1])).trials()[0].acquire()\nprint('held', flush=True)\n"
        "time.sleep(30)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(study.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_cancel_asks_a_process_of_this_machine_to_stop(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    process = running_process(study)
    call("cancel", "mine")
    assert process.wait(10) == 7


@pytest.mark.parametrize("field", ["process_started", "host"])
def test_cancel_never_signals_a_process_that_only_has_the_same_number(
    call: Call, tmp_path: Path, field: str
) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    process = running_process(study)
    path = study.trials()[0].path / "attempts" / "1" / "attempt.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: "other"}))
    call("cancel", "mine")
    time.sleep(0.3)
    assert process.poll() is None
    process.kill()
    process.wait()


# ---- retry


def test_retry_takes_what_failed_or_was_cancelled_and_goes_on_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    study = make_study(tmp_path, 5, 1)
    done, failed, diverged, cancelled, _ = study.trials()
    end(done)
    attempt = start(failed, 40)
    checkpoint(attempt, 30)
    attempt.release(failed.state().replace(status="failed", outcome="code", reason="boom", step=40))
    end(diverged, "diverged", 20)
    end(cancelled, "cancelled", 10)
    assert [t.id for t in chosen(study, ("failed", "cancelled"), None)] == [failed.id, cancelled.id]
    assert reopen(failed) == "from step 30"
    assert reopen(cancelled) == "from the start"
    assert statuses(study) == ["done", "preempted", "diverged", "pending", "pending"]
    assert "boom" in (failed.state().reason or "")
    second = failed.acquire()
    assert second.number == 2
    assert failed.newest_checkpoint()[1] == 30


def test_a_diverged_trial_is_a_result_and_begins_afresh_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    study = make_study(tmp_path, 1, 1)
    (trial,) = study.trials()
    attempt = start(trial, 20)
    checkpoint(attempt, 10)
    attempt.release(trial.state().replace(status="diverged", outcome="diverged"))
    assert chosen(study, ("failed", "cancelled"), None) == []
    assert reopen(trial) == "from the start"
    assert trial.newest_checkpoint() is None
    assert trial.acquire().number == 2, "the number of an old attempt is not given out again"


def test_retry_runs_nothing_that_runs_or_is_done(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 2, 1)
    done, runs = study.trials()
    end(done)
    start(runs, 5)
    for trial, words in ((done, "done"), (runs, "running")):
        code, _, err = call("retry", "mine", trial.id)
        assert code == 2
        assert words in err
    with pytest.raises(TrialHeldError):
        reopen(runs)
    code, out, _ = call("retry", "mine")
    assert code == 0
    assert "nothing failed or cancelled" in out
    assert call("retry", "mine", "arm0", "--failed")[0] == 2


def test_retry_dry_run_says_what_would_be_run_again(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 2, 1)
    end(study.trials()[0], "failed", 5)
    found = json.loads(call("retry", "mine", "--dry-run", "--json")[1])
    assert found["trials"] == [study.trials()[0].id]
    assert statuses(study) == ["failed", "pending"]


def test_an_arm_is_named_for_all_its_trials(call: Call, tmp_path: Path) -> None:
    """Of a retry those that failed or were cancelled, of a cancellation those that have not ended;
    an arm whose name begins another's means itself.
    """
    study = make_study(tmp_path / "runs" / "mine", 12, 3)
    of = {t["id"]: t["arm"] for t in study.manifest()["trials"]}
    one = [t for t in study.trials() if of[t.id] == "arm1"]
    end(one[0])
    end(one[1], "failed", 5)
    found = json.loads(call("retry", "mine", "arm1", "--dry-run", "--json")[1])
    assert found["trials"] == [one[1].id]
    code, out, _ = call("retry", "mine", "arm2", "--json")
    assert code == 0
    assert json.loads(out)["study"] == "mine", "as status has it: nothing was to be run again"
    found = json.loads(call("cancel", "mine", "arm1", "--dry-run", "--json")[1])
    assert found["trials"] == [one[2].id]
    assert call("cancel", "mine", "arm1", "arm10-s0")[0] == 0
    cancelled = {t.id for t in study.trials() if t.state().status == "cancelled"}
    assert {of[id] for id in cancelled} == {"arm1", "arm10"}
    assert len(cancelled) == 2
    code, _, err = call("cancel", "mine", "arm")
    assert code == 2
    assert "fits 36 trials" in err


@pytest.mark.parametrize("verb", ["cancel", "retry", "logs"])
def test_an_empty_word_names_no_trial(call: Call, tmp_path: Path, verb: str) -> None:
    """As of an unset variable; also where the study has one trial only."""
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    code, _, err = call(verb, "mine", "")
    assert (code, "'' names no trial" in err) == (2, True)
    assert not study.trials()[0].cancel_path.exists()


def test_two_retries_at_once_open_a_trial_once(tmp_path: Path) -> None:
    study = make_study(tmp_path, 1, 1)
    end(study.trials()[0], "failed", 5)
    reopen(study.trials()[0])
    before = study.trials()[0].state()
    reopen(study.trials()[0])
    assert study.trials()[0].state() == before


# ---- prune


def with_checkpoints(tmp_path: Path) -> StudyDir:
    """done (3 checkpoints), preempted (3, over two attempts), running (2), with debris."""
    study = make_study(tmp_path / "runs" / "mine", 3, 1)
    done, preempted, running = study.trials()
    attempt = start(done, 30)
    for step in (10, 20, 30):
        checkpoint(attempt, step)
    attempt.release(done.state().replace(status="done", outcome="done"))
    first = start(preempted, 20)
    checkpoint(first, 10)
    checkpoint(first, 20)
    first.begin_checkpoint(30)  # it was killed while it wrote
    first.release(preempted.state().replace(status="preempted"))
    second = start(preempted, 30)
    checkpoint(second, 30)
    second.release(preempted.state().replace(status="preempted"))
    third = start(running, 20)
    checkpoint(third, 10)
    checkpoint(third, 20)
    return study


def test_prune_takes_the_columns_that_earlier_versions_kept(call: Call, tmp_path: Path) -> None:
    """And no folder of that name in which anything else lies."""
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    columns = study.path / ".cache" / ("0123456789ab" * 2)
    columns.mkdir(parents=True)
    for name in ("index.json", "00112233aabbccdd.npy", "00112233aabbccdd.12345678.tmp"):
        (columns / name).write_bytes(b"x" * 1000)
    (columns / "notes.txt").touch()
    assert "nothing to prune" in call("prune", "mine", "--yes")[1]
    (columns / "notes.txt").unlink()
    out = call("prune", "mine")[1]
    assert "mine: 1 folder of columns that an earlier version kept, 3.0 KB" in out
    (found,) = json.loads(call("prune", "mine", "--yes", "--json")[1])["checkpoints"]
    assert (found["trial"], found["bytes"], found["deleted"]) == (None, 3000, True)
    assert not list(study.path.glob(".cache*"))
    assert "nothing to prune" in call("prune", "mine")[1]
    elsewhere = tmp_path / "elsewhere"
    columns = elsewhere / ("0123456789ab" * 2)
    columns.mkdir(parents=True)
    (study.path / ".cache").symlink_to(elsewhere)
    assert "nothing to prune" in call("prune", "mine", "--yes")[1]
    assert columns.exists()


def left(study: StudyDir) -> list[list[int]]:
    return [[s for a in t.attempts() for s in a.checkpoint_steps()] for t in study.trials()]


def test_prune_shows_first_and_never_takes_what_a_trial_resumes_from(
    call: Call, tmp_path: Path
) -> None:
    study = with_checkpoints(tmp_path)
    before = left(study)
    code, out, _ = call("prune", "mine")
    assert code == 0
    assert "4 checkpoints would go, 3.0 KB. Nothing was deleted" in out
    assert call("prune", "mine", "--dry-run")[1] == out
    assert left(study) == before
    found = json.loads(call("prune", "--all", "--json")[1])
    assert (found["bytes"], len(found["checkpoints"])) == (3000, 4)
    code, out, _ = call("prune", "mine", "--yes")
    assert "Deleted 4 checkpoints, 3.0 KB" in out
    assert left(study) == [[30], [20, 30], [10, 20]]
    assert "nothing to prune" in call("prune", "mine", "--yes")[1]
    assert not list(study.path.rglob("*.pruned"))


def test_prune_can_take_the_weights_of_finished_trials_and_only_those(
    call: Call, tmp_path: Path
) -> None:
    study = with_checkpoints(tmp_path)
    call("prune", "mine", "--keep", "0", "--yes")
    assert left(study) == [[], [20, 30], [10, 20]]


def test_prune_leaves_alone_a_trial_that_runs_elsewhere(call: Call, tmp_path: Path) -> None:
    study = make_study(tmp_path / "runs" / "mine", 1, 1)
    (trial,) = study.trials()
    attempt = start(trial, 30)
    for step in (10, 20, 30):
        checkpoint(attempt, step)
    elsewhere(attempt, 5)
    call("prune", "mine", "--yes", "--keep", "0")
    assert left(study) == [[10, 20, 30]]
    elsewhere(attempt, 500)
    call("prune", "mine", "--yes", "--keep", "0")
    assert left(study) == [[20, 30]]


@pytest.mark.parametrize(
    "argv",
    [
        ["cancel"],
        ["cancel", "nothing"],
        ["retry"],
        ["retry", "nothing"],
        ["watch"],
        ["watch", "nothing"],
        ["watch", "mine", "--interval", "0"],
        ["prune"],
        ["prune", "mine", "--all"],
        ["prune", "mine", "--keep", "-1"],
        ["prune", "mine", "--yes", "--dry-run"],
        ["logs", "mine", "--tail", "-1"],
        ["logs", "mine", "-f", "--json"],
        ["status", "mine", "--al"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_paragraph_and_changes_nothing(
    call: Call, tmp_path: Path, argv: list[str]
) -> None:
    with_checkpoints(tmp_path)
    before = {str(p): p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")}
    code, out, err = call(*argv)
    assert code == 2
    assert out == ""
    assert err.startswith("ablate")
    assert err.count("\n") == 1
    assert {str(p): p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*")} == before
