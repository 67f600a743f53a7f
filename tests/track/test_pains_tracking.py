"""Each test is named after what users of trackers suffer from, and says what happens here."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from fake_training import run
from stand_in import Server
from tracked import lengthen, losses, make_study, train, wait_for

from ablate.analysis import bands, judge, load, load_csv, load_wandb
from ablate.cli import main
from ablate.launch.job import run_job
from ablate.rundir import StudyDir, TrialDir
from ablate.track.facts import facts_of
from ablate.track.offline import read_offline_runs


def kill_at(study: StudyDir, step: int) -> None:
    """Runs the trials in a process of its own, which is killed at that step."""
    for trial in study.trials():
        child = os.fork()
        if not child:
            try:
                run_job(trial, run=run)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"killed at step {step}"


def mirrored(trial: TrialDir) -> bool:
    log = trial.attempts()[-1].path / "wandb.log"
    return log.exists() and "mirrored in" in log.read_text()


def test_pain_24_after_a_resume_no_step_is_dropped_or_doubled(
    tmp_path: Path, server: Server
) -> None:
    study = make_study(tmp_path, arms=("base",), kill_at=37, steps=50)
    kill_at(study, 37)  # its newest checkpoint is at step 30
    assert main(["sync", str(study.path)]) == 0, "with what there is: 37 steps"
    train(study)
    (trial,) = study.trials()
    undisturbed = {step: 5.0 / step for step in range(1, 51)}
    assert losses(trial) == undisturbed
    assert main(["sync", str(study.path)]) == 0
    (there,) = server.runs.values()
    assert there.steps() == list(range(1, 51))
    assert there.values("train/loss") == undisturbed
    assert there.values("tokens") == {step: step * 10 for step in range(1, 51)}
    curve = load(study.path).curves
    assert curve["step"].tolist() == list(range(1, 51))


def test_pain_25_pieces_of_one_offline_run_are_one_run_with_its_configuration_first(
    tmp_path: Path,
) -> None:
    study = make_study(tmp_path, arms=("base",), steps=40, stop_every=13)
    (trial,) = study.trials()
    while trial.state().status != "done":
        train(study)
    assert len(trial.attempts()) == 4, "three requeues"
    assert main(["sync", str(study.path), "--offline"]) == 0
    (log,) = study.path.rglob("*.wandb")
    (record,) = read_offline_runs(log)
    assert record.id == facts_of(trial).id
    assert [row["_step"] for row in record.rows] == list(range(1, 41))
    assert record.config["train"] == {"steps": 40}
    assert record.state == "finished"


def test_pain_26_a_preempted_trial_is_called_so_and_keeps_its_run(
    tmp_path: Path, server: Server
) -> None:
    study = make_study(tmp_path, arms=("base",), stop_every=8, pause=0.02, track="wandb")
    (trial,) = study.trials()
    for _ in range(4):
        ended = run_job(trial, run=run).status
        wait_for(lambda: mirrored(trial))
        (there,) = server.runs.values()
        assert there.name == facts_of(trial).id
        assert there.state == {"preempted": "preempted", "done": "finished"}[ended]
    assert ended == "done"
    assert there.steps() == list(range(1, 31))


def test_pain_29_means_deviations_and_intervals_over_seeds_are_there_by_default(
    tmp_path: Path,
) -> None:
    table = tmp_path / "curves.csv"
    values = {"base": [1.0, 1.2, 1.4], "rope": [0.8, 1.0, 1.2]}
    lines = [f"{arm},{seed},{step},{v}" for arm, row in values.items()
             for seed, v in enumerate(row) for step in (1, 2)]  # fmt: skip
    table.write_text("arm,seed,step,val/bpb\n" + "\n".join(lines) + "\n")
    frames = load_csv(table)
    judged = judge(frames).table.set_index("arm")
    assert judged["mean"].tolist() == pytest.approx([1.2, 1.0])
    assert judged.loc["rope", "difference"] == pytest.approx(-0.2)
    assert judged.loc["rope", "verdict"] == "better"
    assert judged.loc["rope", ["low", "high"]].tolist() == pytest.approx([-0.2, -0.2])
    assert not bands(frames.curves, "val/bpb").empty


def test_pain_30_what_is_analysed_is_never_a_sample(tmp_path: Path, server: Server) -> None:
    study = train(make_study(tmp_path, arms=("base",), steps=20))
    (trial,) = study.trials()
    lengthen(trial, to=1500)
    assert main(["sync", str(study.path)]) == 0
    texts = [load_wandb("me/demo").curves.to_csv().encode() for _ in range(2)]
    assert texts[0] == texts[1], "twice the same bytes"
    assert len(load_wandb("me/demo").curves) == 1500, "not 500"
    assert "RunSampledHistory" not in server.queries


def test_pain_31_what_is_missing_is_known_from_the_files_and_not_from_a_server(
    tmp_path: Path, server: Server
) -> None:
    study = train(make_study(tmp_path, arms=("base", "rope"), steps=20))
    assert main(["sync", str(study.path)]) == 0
    server.runs.clear()  # the server forgets everything
    before = {t.id: t.state().attempt for t in study.trials()}
    began = time.monotonic()
    for trial in study.trials():
        with pytest.raises(Exception, match="has ended"):
            run_job(trial, run=run)
    assert time.monotonic() - began < 5
    assert {t.id: t.state().attempt for t in study.trials()} == before, "nothing runs again"
    assert main(["sync", str(study.path), "--json"]) == 0
    assert len(server.runs) == 2, "and the mirror is rebuilt"
    assert json.dumps(sorted(len(r.history) for r in server.runs.values())) == "[20, 20]"
