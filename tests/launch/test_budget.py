"""A budget in GPU-hours, and a hook that is called once when the study ends."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ablate.errors import ConfigError
from ablate.launch import budget
from ablate.launch.notify import tell_if_over
from ablate.launch.settings import remember, remembered
from ablate.rundir import StudyDir
from ablate.rundir.submission import Submission, add_submission

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from written import end, make_study, start


def lasted(trial, hours: float, **record: object) -> None:
    """As if its newest attempt had begun so long before it ended."""
    attempt = trial.newest_attempt()
    path = attempt.path / "attempt.json"
    own = attempt.own_state()
    end_time = own.ended if own else os.stat(attempt.path / "lease").st_mtime
    values = {**json.loads(path.read_text()), "time": end_time - 3600 * hours, **record}
    path.write_text(json.dumps(values))


def study_of_four(path: Path) -> StudyDir:
    """Two done (1 h and 3 h), one running since 2 h, one pending."""
    study = make_study(path, 2, 2)
    first, second, third, _ = study.trials()
    end(first)
    lasted(first, 1.0)
    end(second)
    lasted(second, 3.0)
    start(third, 10)
    lasted(third, 2.0)
    return study


def test_used_are_the_hours_of_every_attempt(tmp_path: Path) -> None:
    study = study_of_four(tmp_path)
    assert budget.used_hours(study) == pytest.approx(6.0, abs=0.01)
    trial = study.trials()[0]
    trial.set_aside()
    end(trial)
    lasted(trial, 0.5)
    assert budget.used_hours(study) == pytest.approx(6.5, abs=0.01), "what is set aside was used"


def test_hours_are_counted_by_gpus_and_shared_by_those_who_share_them(tmp_path: Path) -> None:
    study = make_study(tmp_path, 2, 2)
    alone, one, two, _ = study.trials()
    for trial in (alone, one, two):
        end(trial)
    folder = tmp_path / "submissions"
    add_submission(folder, Submission(job_id="5", tasks=[[alone.id]], resources={"gpus": 4}))
    packed = Submission(job_id="6", tasks=[[one.id, two.id]], resources={"gpus": 1})
    add_submission(folder, packed)
    lasted(alone, 1.0, job_id="5")
    lasted(one, 1.0, job_id="6")
    lasted(two, 1.0, job_id="6")
    assert budget.used_hours(study) == pytest.approx(5.0, abs=0.01)


def test_members_of_a_stack_share_the_hours_of_their_process(tmp_path: Path) -> None:
    study = make_study(tmp_path, 2, 2)
    trials = study.trials()
    ids = [t.id for t in trials]
    for trial in trials:
        end(trial)
        lasted(trial, 2.0, seats=ids[:3] if trial.id != ids[3] else None)
    assert budget.used_hours(study) == pytest.approx(2.0 + 2.0, abs=0.01)
    assert budget.estimate(study, ids) == pytest.approx(4.0, abs=0.01)
    # Two others of the stack went on in a process of their own later on.
    for trial in trials[:2]:
        trial.set_aside()
        end(trial)
        lasted(trial, 1.0, seats=ids[:3], pid=7)
    assert budget.used_hours(study) == pytest.approx(5.0, abs=0.01)
    # On SLURM two GPUs ran the stack, and the fourth one beside it or after it.
    one = Submission(job_id="6", tasks=[ids], resources={"gpus": 2, "pack": 6, "stack": 3})
    add_submission(tmp_path / "submissions", one)
    for trial in trials:
        lasted(trial, 2.0, job_id="6")
    for trial in trials[:2]:
        lasted(trial, 1.0, job_id="6")
    assert budget.used_hours(study) == pytest.approx(5.0, abs=0.01)


def test_what_is_missing_is_estimated_from_what_is_done(tmp_path: Path) -> None:
    study = study_of_four(tmp_path)
    third, fourth = study.trials()[2:]
    assert budget.estimate(study, [third.id, fourth.id]) == pytest.approx(4.0, abs=0.01)
    assert budget.estimate(make_study(tmp_path / "new"), ["x"]) is None


def test_a_budget_that_is_used_up_or_plainly_too_small_refuses_a_launch(tmp_path: Path) -> None:
    study = study_of_four(tmp_path)
    missing = [t.id for t in study.trials()[2:]]
    budget.check(study, None, missing)
    budget.check(study, 11.0, missing)
    budget.check(study, 5.0, [])
    with pytest.raises(ConfigError, match="used up"):
        budget.check(study, 5.0, missing)
    with pytest.raises(ConfigError, match=r"6\.00 are used.*need about 4\.00 more"):
        budget.check(study, 9.0, missing)


def test_what_runs_asks_one_figure_that_is_renewed_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of_four(tmp_path)
    assert budget.exhausted(study) is None, "there is no budget"
    remember(study, {"max_gpu_hours": 7.0}, "ablate launch")
    assert budget.exhausted(study) is None
    asked = []
    monkeypatch.setattr(budget, "used_hours", lambda study: asked.append(1) or 8.0)
    assert budget.exhausted(study) is None, "the figure is fresh"
    assert asked == []
    monkeypatch.setattr(budget, "FRESH_SECONDS", 0.0)
    assert "the budget of 7 GPU-hours is used up (8 used)" in (budget.exhausted(study) or "")
    remember(study, {"max_gpu_hours": 9.0}, "ablate launch")
    assert budget.exhausted(study) is None, "a new launch may raise it"


# ---- the hook


def ended_study(path: Path, hook: str) -> StudyDir:
    study = make_study(path, 1, 2)
    remember(study, {"notify": hook}, None)
    for trial in study.trials():
        end(trial)
    return study


def test_the_hook_is_called_once_however_many_see_the_end(tmp_path: Path) -> None:
    out = tmp_path / "called"
    study = ended_study(tmp_path / "mine", f"echo $STUDY $STATE $DONE >> {out}")
    with ThreadPoolExecutor(20) as pool:
        told = list(pool.map(lambda _: tell_if_over(study), range(20)))
    assert sorted(filter(None, told)) == ["done"]
    assert out.read_text() == "mine done 2\n"


def test_it_is_called_again_when_a_retry_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "called"
    study = ended_study(tmp_path / "mine", f"echo $STATE >> {out}")
    trial = study.trials()[0]
    trial.write_state(trial.state().replace(status="failed"))
    assert tell_if_over(study) == "failed"
    trial.write_state(trial.state().replace(status="pending"))
    assert tell_if_over(study) is None
    end(trial)
    assert tell_if_over(study) == "done"
    assert out.read_text() == "failed\ndone\n"


def test_nobody_is_told_while_something_runs_and_of_a_standstill_at_once(tmp_path: Path) -> None:
    out = tmp_path / "called"
    study = make_study(tmp_path / "mine", 1, 2)
    remember(study, {"notify": f"echo $STATE >> {out}"}, None)
    first, second = study.trials()
    end(first)
    attempt = start(second, 5)
    assert tell_if_over(study, stopped=True) is None
    attempt.release(second.state().replace(status="preempted", outcome="preempted"))
    assert tell_if_over(study) is None
    assert tell_if_over(study, stopped=True) == "stalled"
    assert tell_if_over(study, stopped=True) is None
    assert out.read_text() == "stalled\n"


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("exit 3", "exit code 3"),
        ("no-such-command-at-all", "exit code 127"),
        ("http://127.0.0.1:9/", "failed"),
        ("echo hello", "exit code 0: hello"),
    ],
)
def test_a_hook_that_fails_hurts_nothing_and_is_noted(
    tmp_path: Path, hook: str, words: str
) -> None:
    study = ended_study(tmp_path, hook)
    assert tell_if_over(study) == "done"
    (notice,) = (tmp_path / "notices").iterdir()
    assert words in json.loads(notice.read_text())["result"]


def test_a_hook_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.launch.notify.COMMAND_SECONDS", 0.3)
    study, began = ended_study(tmp_path, "sleep 20"), time.monotonic()
    assert tell_if_over(study) == "done"
    assert time.monotonic() - began < 10


def test_an_address_is_sent_json(tmp_path: Path) -> None:
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    study = ended_study(tmp_path / "mine", f"http://127.0.0.1:{server.server_port}/hook")
    assert tell_if_over(study) == "done"
    server.shutdown()
    server.server_close()
    (told,) = got
    assert (told["study"], told["state"], told["done"]) == ("mine", "done", "2")
    assert "mine is done" in told["text"]


def test_how_a_study_was_launched_is_remembered_for_each_arm(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    assert remembered(study) is None
    one, two = {"name": "slurm", "gpus": 1}, {"name": "slurm", "gpus": 2}
    remember(study, one, "ablate launch", {"a": one, "b": two})
    found = remembered(study)
    assert found is not None
    assert (found.cluster, found.arms, found.command) == (one, {"b": two}, "ablate launch")
    written = (tmp_path / "launch.json").stat().st_mtime_ns
    remember(study, one, "ablate launch", {"a": one, "b": two})
    assert (tmp_path / "launch.json").stat().st_mtime_ns == written
