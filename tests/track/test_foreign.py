"""Runs in wandb as frames: every row, whoever trained them, from a server or a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from stand_in import Run, Server
from tracked import losses, make_study, train

from ablate.analysis import judge, load, load_csv, load_wandb
from ablate.cli import main
from ablate.errors import DataError
from ablate.track import read_offline


def hold(server: Server, name: str, rows: list[dict[str, Any]], **config: Any) -> Run:
    """A run that somebody else trained and logged, in rows as they came."""
    run = server.runs[name] = Run(name=name, display_name=f"run {name}", exit_codes=[0])
    run.history = [json.dumps({"_step": i, **row}) for i, row in enumerate(rows)]
    run.config = {key: {"value": value} for key, value in config.items()}
    return run


def test_a_study_in_wandb_is_judged_as_on_disk(tmp_path: Path, server: Server) -> None:
    study = train(make_study(tmp_path, seeds=3))
    assert main(["sync", str(study.path)]) == 0
    ours, theirs = load(study.path), load_wandb("me/demo")
    for trial in study.trials():
        entry = next(e for e in study.manifest()["trials"] if e["id"] == trial.id)
        mask = (theirs.curves["arm"] == entry["arm"]) & (theirs.curves["seed"] == entry["seed"])
        curve = theirs.curves[mask]
        assert dict(zip(curve["step"], curve["train/loss"], strict=True)) == losses(trial)
    for frame in ("trials", "curves", "events"):
        first = ["study", "id", "arm", "seed"]
        assert list(getattr(theirs, frame).columns[:4]) == first
        assert list(getattr(ours, frame).columns[:4]) == first
    columns = ["arm", "mean", "difference", "low", "high", "verdict"]
    pd.testing.assert_frame_equal(judge(ours).table[columns], judge(theirs).table[columns])


def test_metrics_that_were_logged_in_rows_of_their_own_all_arrive(server: Server) -> None:
    for seed in (0, 1):
        for arm in ("a", "b"):
            rows: list[dict[str, Any]] = []
            for step in range(1, 21):
                rows.append({"train/loss": 5.0 / step, "global_step": step})
                if step % 10 == 0:
                    rows.append({"val/loss": 4.0 / step + seed, "global_step": step})
            hold(server, f"{arm}{seed}", rows, arm=arm, seed=seed)
    frames = load_wandb("demo", metric="val/loss")
    assert len(frames.curves) == 4 * 20
    assert frames.curves["val/loss"].notna().sum() == 4 * 2
    assert frames.trials["val/loss"].tolist() == pytest.approx([0.2, 1.2, 0.2, 1.2])
    assert set(frames.trials["status"]) == {"done"}


def test_a_long_history_is_read_whole_and_twice_the_same(server: Server) -> None:
    rows = [{"step": s, "loss": 1 / s, "val/bpb": 2 / s} for s in range(1, 2501)]
    for seed in (0, 1):
        hold(server, f"r{seed}", rows, arm="a", seed=seed)
    one, other = load_wandb("me/demo"), load_wandb("me/demo")
    assert len(one.curves) == 5000, "wandb's own history() would give 500 of each"
    pd.testing.assert_frame_equal(one.curves, other.curves)
    pd.testing.assert_frame_equal(one.trials, other.trials)


def test_a_run_that_ended_in_nan_is_a_loss_and_one_that_crashed_is_no_result(
    server: Server,
) -> None:
    good = [{"step": s, "val/bpb": 1.0} for s in (1, 2)]
    for seed in (0, 1, 2):
        hold(server, f"base{seed}", good, arm="base", seed=seed)
    hold(server, "x0", [good[0], {"step": 2, "val/bpb": "NaN"}], arm="x", seed=0)
    hold(server, "x1", good, arm="x", seed=1)
    hold(server, "x2", good[:1], arm="x", seed=2).exit_codes = [1]
    trials = load_wandb("me/demo", baseline="base").trials
    assert trials["status"].tolist() == ["done"] * 3 + ["diverged", "done", "failed"]


def test_arms_and_seeds_may_have_other_names(server: Server) -> None:
    rows = [{"trainer/global_step": s, "loss": 1.0} for s in (1, 2)]
    hold(server, "q", rows, model={"norm": "rms"}, trainer={"random_seed": 7})
    (trial,) = load_wandb("me/demo", metric="loss", arm="model.norm").trials.to_dict("records")
    assert (trial["arm"], trial["seed"], trial["step"]) == ("rms", 7, 2)
    with pytest.raises(DataError, match="arm="):
        load_wandb("me/demo", metric="loss", arm="model.position")
    with pytest.raises(DataError, match="seed="):
        load_wandb("me/demo", metric="loss", arm="model.norm", seed="model.norm")
    with pytest.raises(DataError, match="no run recorded"):
        load_wandb("me/demo", metric="val/bpb", arm="model.norm")


def test_two_runs_of_one_arm_and_seed_are_refused(server: Server) -> None:
    for name in "pq":
        hold(server, name, [{"step": 1, "val/bpb": 1.0}], arm="a", seed=0)
    with pytest.raises(DataError, match="both arm a, seed 0"):
        load_wandb("me/demo")


def test_a_project_that_is_not_there_is_named(server: Server) -> None:
    with pytest.raises(DataError, match="no wandb project 'me/nowhere'"):
        load_wandb("me/nowhere")


@pytest.fixture
def offline(tmp_path: Path) -> Path:
    """Two attempts of one run, as wandb leaves them: the second goes on from a checkpoint."""
    script = """
import sys, wandb
settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
for arm in ("a", "b"):
    for first, last in ((1, 12), (11, 20)):
        run = wandb.init(mode="offline", dir=sys.argv[1], id=f"r{arm}", name=f"{arm}-s0",
                         config={"arm": arm, "seed": 0}, settings=settings)
        for step in range(first, last + 1):
            run.log({"step": step, "loss": 1 / step + first})
        run.finish()
"""
    import subprocess

    folder = tmp_path / "elsewhere"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=120)
    return folder


def test_pieces_of_an_offline_run_are_stitched(offline: Path) -> None:
    frames = load_wandb(offline, metric="loss")
    for arm in "ab":
        curve = frames.curves[frames.curves["arm"] == arm]
        assert curve["step"].tolist() == list(range(1, 21))
        assert curve["loss"].tolist() == [
            1 / step + (1 if step < 11 else 11) for step in range(1, 21)
        ]
    folders = sorted((offline / "wandb").glob("offline-run-*-ra"))
    rows = read_offline(folders[0])
    assert [row["step"] for row in rows] == list(range(1, 13))
    with pytest.raises(DataError, match="holds 4 wandb runs"):
        read_offline(offline)


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\*.wandb"):
        read_offline(tmp_path)
    (tmp_path / "run-x.wandb").write_bytes(b"not a log at all")
    with pytest.raises(DataError, match=r"run-x.wandb"):
        load_wandb(tmp_path)
    panel = tmp_path / "panel.csv"
    panel.write_text('"Step","a - loss","a - loss__MIN","a - loss__MAX"\n1,2,2,2\n')
    with pytest.raises(DataError, match="sample"):
        load_wandb(panel)
    with pytest.raises(DataError, match="load_wandb"):
        load_csv(panel)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arm,seed,step,val/bpb\n", "no rows"),
        ("arm,seed,step,val/bpb\na,0,1,2\na,0,1,3\n", "twice"),
        ("arm,seed,step,val/bpb\na,zero,1,2\n", "seed is 'zero'"),
        ("arm,seed,step,val/bpb\na,0,1.5,2\n", "step is"),
        ("", "cannot be read"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        load_csv(path)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_of_any_kind_may_measure_now_and_then(tmp_path: Path, kind: str) -> None:
    rows = [
        {"arm": arm, "seed": seed, "step": s, "loss": 1.0, "val/bpb": v if s == 10 else None}
        for arm, v in (("a", 2.0), ("b", 3.0))
        for seed in (0, 1)
        for s in range(1, 13)
    ]
    rows[-3]["val/bpb"] = None  # b, seed 1 at step 10: where the others have theirs
    table, path = pd.DataFrame(rows), tmp_path / f"t.{kind}"
    if kind == "parquet":
        table.to_parquet(path)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    trials = load_csv(path).trials
    assert trials["val/bpb"].tolist()[:3] == [2.0, 2.0, 3.0]
    assert trials["status"].tolist() == ["done", "done", "done", "diverged"]
