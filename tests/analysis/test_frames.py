"""load() reads what was recorded: each trial once, each step once."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import studies
import yaml

from ablate.analysis import columns, curves, judge, load, load_csv
from ablate.analysis.bands import bands
from ablate.analysis.frames import KEYS, flatten
from ablate.config.compose import Composer
from ablate.errors import DataError, StudyError
from ablate.launch.stitch import write_table
from ablate.plan import resolve
from ablate.rundir import State, StudyDir, TrialDir, write_json


def test_frames_have_the_documented_keys_and_one_row_a_trial_and_step(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", studies.values({"base": 0, "rope": 0.1}), steps=30)
    frames = load(study.path)
    for frame in (frames.trials, frames.curves):
        assert list(frame.columns[:4]) == ["study", "id", "arm", "seed"]
    assert len(frames.trials) == 6
    assert frames.trials["id"].is_unique
    assert len(frames.curves) == 6 * 30
    assert not frames.curves.duplicated(["study", "id", "step"]).any()
    assert {"status", "step", "steps", "attempt", "parameters", "flops", "val/bpb"} <= set(
        frames.trials
    )
    assert frames.trials["level/rope"].tolist() == ["baseline"] * 3 + ["rope"] * 3


def test_parquet_and_stitched_lines_give_the_same_curves(tmp_path: Path) -> None:
    values = studies.values({"base": 0, "rope": 0.1})
    lines = load(studies.write_study(tmp_path / "a" / "s", values).path)
    parquet = load(studies.write_study(tmp_path / "b" / "s", values, parquet=True).path)
    pd.testing.assert_frame_equal(lines.curves, parquet.curves)


def test_rows_of_an_attempt_count_up_to_where_the_next_resumed(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", {"base": {0: "failed"}}, steps=40)
    trial = next(iter(study.trials()))
    attempt = trial.acquire(again=("failed",))
    attempt.resumed_from(1, 10)
    for step in range(11, 41):
        attempt.append("metrics.jsonl", {"step": step, "train/loss": -1.0})
    attempt.release(State(status="done", step=40, steps=40))
    curve = load(study.path).curves
    assert curve["step"].tolist() == list(range(1, 41))
    assert (curve.loc[curve["step"] > 10, "train/loss"] == -1).all()
    assert (curve.loc[curve["step"] <= 10, "train/loss"] > 0).all()


def test_a_summary_of_an_earlier_attempt_says_nothing_of_an_unfinished_trial(
    tmp_path: Path,
) -> None:
    study = studies.write_study(tmp_path / "s", {"base": {0: 2.0}, "x": {0: 2.0}})
    trial = next(iter(study.trials()))
    trial.write_state(State(status="preempted", steps=40, attempt=1))
    assert load(study.path).trials["val/bpb"].isna().tolist() == [True, False]


def test_events_are_rows_with_the_trials_keys(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", {"base": {0: 2.0}, "x": {0: "diverged"}})
    events = load(study.path).events
    assert events[["arm", "seed", "step", "kind"]].to_numpy().tolist() == [
        ["x", 0, 20, "divergence"]
    ]


def test_chosen_columns_only(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", {"base": {0: 2.0}})
    curves = load(study.path, columns=["train/loss", "not/there"]).curves
    assert list(curves.columns) == ["study", "id", "arm", "seed", "step", "train/loss"]


def test_several_studies_and_two_of_one_name(tmp_path: Path) -> None:
    a = studies.write_study(tmp_path / "a", {"base": {0: 2.0}})
    b = studies.write_study(tmp_path / "b", {"base": {0: 2.0}})
    frames = load([a.path, b.path])
    assert frames.trials["study"].tolist() == ["a", "b"]
    assert frames.study("b").trials["study"].tolist() == ["b"]
    with pytest.raises(StudyError, match="called a"):
        load([a.path, a.path])


def test_no_manifest_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"manifest\.json"):
        load(tmp_path)


def test_a_planned_study_without_trials_on_disk_is_all_pending(tmp_path: Path) -> None:
    study = StudyDir(tmp_path / "s")
    study.write_manifest(
        {
            "schema": 1,
            "arms": [{"name": "base"}],
            "trials": [{"id": "base-s0", "arm": "base", "seed": 0}],
        }
    )
    assert load(study.path).trials["status"].tolist() == ["pending"]


def test_thinned_bands_keep_a_spike_of_one_step_and_the_mean_over_seeds() -> None:
    steps = list(range(1, 10_001))
    curves = pd.DataFrame(
        {
            "id": ["a"] * 10_000 + ["b"] * 10_000,
            "arm": "x",
            "step": steps * 2,
            "train/loss": [1.0] * 10_000 + [3.0] * 10_000,
        }
    )
    curves.loc[7_777, "train/loss"] = 99.0
    thin = bands(curves, "train/loss", points=100)
    assert len(thin) == 100
    assert thin["high"].max() == 99.0
    assert (thin["low"] == 1.0).all()
    assert thin["mean"].median() == 2.0
    assert thin["step"].iloc[-1] == 10_000


def test_differences_of_curves_are_taken_over_the_seeds_that_both_have() -> None:
    rows = [("base", 0, 1, 5.0), ("base", 1, 1, 9.0), ("x", 0, 1, 5.5)]
    curves = pd.DataFrame(rows, columns=["arm", "seed", "step", "val/bpb"])
    curves["id"] = curves["arm"] + curves["seed"].astype(str)
    thin = bands(curves, "val/bpb", baseline="base")
    assert thin.set_index("arm")["difference"].to_dict() == {"base": 0.0, "x": 0.5}
    # In another order of rows the groups are found all the same.
    mixed = pd.concat([curves.assign(step=s) for s in (1, 2)]).sort_values("step")
    assert len(bands(mixed, "val/bpb")) == 4


def test_a_table_of_curves_from_elsewhere_is_judged_like_a_study(tmp_path: Path) -> None:
    values = studies.values({"base": 0, "rope": -0.03})
    rows = [
        {"arm": a, "seed": s, "step": step, "val/bpb": v + (20 - step)}
        for a, row in values.items()
        for s, v in row.items()
        for step in (10, 20)
    ]
    path = tmp_path / "curves.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    table = judge(load_csv(path)).table
    assert table["verdict"].tolist() == ["baseline", "better"]
    assert table["mean"][0] == pytest.approx(sum(values["base"].values()) / 3)
    with pytest.raises(DataError, match=r"no column .val/loss"):
        load_csv(path, metric="val/loss")


def test_unequal_lengths_from_elsewhere_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    rows = [(a, s, 20 - 5 * (a == "x"), 2.0 + s) for a in ("base", "x") for s in (0, 1)]
    pd.DataFrame(rows, columns=["arm", "seed", "step", "val/bpb"]).to_csv(path, index=False)
    with pytest.raises(StudyError, match=r"^steps: "):
        judge(load_csv(path))


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyDir:
    """A study that is large enough to be decoded at once."""
    monkeypatch.setattr("ablate.analysis.curves._LEAST_TRIALS", 4)
    values = studies.values({"base": 0, "rope": 0.1}, range(3))
    return studies.write_study(tmp_path / "s", values, steps=12, parquet=True)


def with_nulls(table: pa.Table, name: str, every: int) -> pa.Table:
    values = [None if i % every == 0 else v for i, v in enumerate(table[name].to_pylist())]
    return table.set_column(table.column_names.index(name), name, pa.array(values, pa.float64()))


def change(trial: TrialDir, how: str) -> None:
    path, table = trial.metrics_path, pq.read_table(trial.metrics_path)
    step = table.column_names.index("step")
    match how:
        case "has fewer columns":
            write_table(table.drop_columns(["train/loss"]), path)
        case "has more columns":
            write_table(table.append_column("extra", table["train/loss"]), path)
        case "is shorter":
            write_table(table.slice(0, 7), path)
        case "is empty":
            write_table(table.slice(0, 0), path)
        case "has fractions":
            write_table(table.set_column(step, "step", table["step"].cast(pa.float64())), path)
        case "has nulls among whole numbers":
            steps = pa.array([None, *table["step"].to_pylist()[1:]], pa.int64())
            write_table(table.set_column(step, "step", steps), path)
        case "has text":
            text = pa.array(["x"] * len(table))
            write_table(table.set_column(2, table.column_names[2], text), path)
        case "is missing":
            path.unlink()
        case "is damaged":
            path.write_bytes(path.read_bytes()[:200])
        case "is damaged in the middle":
            data = path.read_bytes()
            path.write_bytes(data[:4] + bytes(30) + data[34:])
        case "has no folder":
            shutil.rmtree(trial.path)
        case "runs":
            trial.acquire(again=("done",))


CHANGES = ["has fewer columns", "has more columns", "is shorter", "is empty", "has fractions",
           "has nulls among whole numbers", "has text", "is missing", "is damaged",
           "is damaged in the middle", "has no folder", "runs"]  # fmt: skip


@pytest.mark.parametrize(("how", "number"), [(how, i % 6) for i, how in enumerate(CHANGES)])
def test_one_trial_among_others_that_are_alike_is_read_as_if_each_were_alone(
    large: StudyDir, how: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trial in large.trials():
        write_table(pq.read_table(trial.metrics_path), trial.metrics_path)
    change(large.trials()[number], how)
    seen: list[set[int]] = []
    decode = curves.decode
    monkeypatch.setattr(curves, "decode", lambda *a: seen.append(decode(*a)) or seen[-1])
    found = {asked: load(large.path, columns=asked) for asked in (None, ("train/loss",))}
    assert seen == [set(range(6)) - {number}] * 2, "the others are decoded at once"
    monkeypatch.setattr("ablate.analysis.frames.prepare", lambda *_: None)
    for asked, at_once in found.items():
        one_by_one = load(large.path, columns=asked)
        pd.testing.assert_frame_equal(at_once.curves, one_by_one.curves)
        pd.testing.assert_frame_equal(at_once.trials, one_by_one.trials)
    assert len(seen) == 2


@pytest.mark.parametrize("written", ["as before", "as now", "with nulls"])
def test_curves_decoded_at_once_are_those_read_one_by_one(
    large: StudyDir, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, trial in enumerate(large.trials()):
        table = pq.read_table(trial.metrics_path)
        if written == "as before":
            pq.write_table(table, trial.metrics_path, compression="zstd")
        else:
            nulls = written == "with nulls"
            table = with_nulls(table, "train/loss", number + 2) if nulls else table
            write_table(table, trial.metrics_path)
    paths = [str(trial.metrics_path) for trial in large.trials()]
    room = columns.reserve(paths, None, KEYS)
    assert room is not None
    assert columns.decode(room, range(6)) == set(range(6))
    found = {asked: load(large.path, columns=asked) for asked in (None, ("train/loss",))}
    monkeypatch.setattr("ablate.analysis.frames.prepare", lambda *_: None)
    for asked, at_once in found.items():
        pd.testing.assert_frame_equal(at_once.curves, load(large.path, columns=asked).curves)
    found[None].curves["train/loss"] = 0.0  # the reader's own
    assert (load(large.path).curves["train/loss"].fillna(1.0) > 0).all()


def test_memory_that_was_touched_before_holds_the_same(large: StudyDir) -> None:
    rows = [{"id": t.id, "arm": "a", "seed": 0, "study": "s", "status": "done"}
            for t in large.trials()]  # fmt: skip
    made = []
    for enough in (True, False):
        stop = threading.Event()
        if enough:
            stop.set()
        prepared = curves.prepare(large, rows, None, stop)
        assert prepared is not None
        made.append(curves.read_curves(large, rows, None, prepared))
    assert made[0].columns.keys() == made[1].columns.keys()
    for name, values in made[0].columns.items():
        np.testing.assert_array_equal(values, made[1].columns[name])


def test_whatever_changed_is_read_anew(large: StudyDir) -> None:
    before = load(large.path)
    trial = large.trials()[1]
    curve = pd.read_parquet(trial.metrics_path).assign(**{"train/loss": 7.0})
    curve.to_parquet(trial.metrics_path)
    after = load(large.path).curves
    assert (after.loc[after["id"] == trial.id, "train/loss"] == 7.0).all()
    assert len(after) == len(before.curves)
    summary = trial.summary() or {}
    write_json(trial.summary_path, {**summary, "flops": 12.0})
    assert load(large.path).trials.set_index("id").loc[trial.id, "flops"] == 12.0
    # A new attempt is a new state, whatever the files of the old one say.
    trial.acquire(again=("done",))
    assert load(large.path).trials.set_index("id").loc[trial.id, "status"] == "running"
    shutil.rmtree(trial.path)
    assert load(large.path).trials.set_index("id").loc[trial.id, "status"] == "pending"
    manifest = large.manifest()
    more = {**manifest["trials"][1], "id": "more-s9-00000000", "seed": 9}
    write_json(large.manifest_path, {**manifest, "trials": [*manifest["trials"], more]})
    assert load(large.path).trials["seed"].tolist() == [*before.trials["seed"], 9]


def test_sections_that_trials_share_are_parsed_once_and_the_same(tmp_path: Path) -> None:
    study = studies.write_study(tmp_path / "s", studies.values({"base": 0, "rope": 0.1}))
    frames = load(study.path)
    for trial in study.trials():
        assert frames.configs["s", trial.id] == flatten(trial.config())


def test_events_name_the_batch_and_on_request_its_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.write_study(tmp_path / "s", studies.values({"base": 0, "rope": 0.1}))
    trial = study.trial(load(study.path).trials["id"][0])
    happened = [
        {"kind": "response", "what": "rewind", "step": 20, "next_batch": 41},
        {"kind": "spike", "step": 31, "start": 29, "peak": 30},
    ]
    text = "".join(json.dumps(e) + "\n" for e in happened)
    (trial.path / "events.jsonl").write_text(text, encoding="utf-8")
    spike = load(study.path).events.query("kind == 'spike'").iloc[0]
    assert spike["batch"] == 50, "30, and the 20 that were left out"
    (tmp_path / "text.txt").write_text("in the beginning " * 4000, encoding="utf-8")
    files = [f"data.path={tmp_path / 'text.txt'}", f"data.cache_dir={tmp_path / 'cache'}"]
    config = resolve(Composer().compose(["size=tiny", "data=kjv", "data.corpus=null", *files]))
    (trial.path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.chdir(study.path)
    named = load(".", batches=True).events.query("kind == 'spike'").iloc[0]
    assert len(json.loads(named["sequences"])) == config["train"]["batch_size"]
