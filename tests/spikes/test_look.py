"""`ablate spikes` on trials that were really trained: recorded events, batches, replay, follow."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ablate.cli import main
from ablate.cli.spike_follow import follow
from ablate.cli.spike_records import open_records, search
from ablate.config.schema import DataConfig
from ablate.data.naming import name_batch
from ablate.data.opening import open_data
from ablate.rundir import StudyDir, TrialDir
from ablate.spikes import recorded
from ablate.spikes.order import number_of
from ablate.train import run_trial

NOISE = "#%&@!~^*=+{}[]<>|;:?/"
BATCH, LENGTH = 4, 32


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two arms on the same text, with documents of noise: everybody stumbles over them."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "text").mkdir()
    draw = np.random.default_rng(0)
    words = "the of and to in that he shall unto for his a lord they be".split()  # noqa: SIM905
    for i in range(60):
        (folder / f"text/{i:02}.txt").write_text(" ".join(draw.choice(words, 80)))
    for i in (15, 35, 55):
        (folder / f"text/{i}.txt").write_text("".join(draw.choice(list(NOISE), 3 * LENGTH)))
    study = StudyDir(folder / "runs" / "s")
    entries = []
    for arm, norm in (("base", "default"), ("rms", "rms")):
        config = {
            "seed": 1,
            "model": {
                "d_model": 16, "n_heads": 2, "n_layers": 2, "mlp_ratio": 2, "vocab_size": 257,
                "max_sequence_length": LENGTH, "embedding_size": None, "eos_token_id": 256,
                "pad_token_id": 256, "layer_norm_type": norm, "attention_dropout": 0.0,
                "residual_dropout": 0.0, "embedding_dropout": 0.0,
            },
            "data": {
                "corpus": None, "path": str(folder / "text"), "validation_fraction": 0.05,
                "cache_dir": str(folder / "cache"),
            },
            "train": {
                "steps": 250, "batch_size": BATCH, "checkpoint_every": 50, "keep_checkpoints": -1,
                "validation_tokens": 200, "device": "cpu", "measure_every": 25,
            },
            "optim": {"lr": 5e-3},
        }  # fmt: skip
        trial = study.trial(f"{arm}-s1")
        trial.create(config, 250)
        run_trial(trial.acquire(), config)
        entries.append({"id": trial.id, "arm": arm, "seed": 1})
    (study.path / "manifest.json").write_text(json.dumps({"schema": 1, "trials": entries}))
    return study


def answer(capsys, *argv: str) -> dict:
    capsys.readouterr()
    assert main(["spikes", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_the_command_finds_afterwards_is_what_the_loop_wrote_down(study, capsys):
    trial = study.trial("base-s1")
    shown = answer(capsys, str(trial.path))["events"]
    written = [e.to_dict() for e in recorded(trial.stitched("events.jsonl"))]
    assert written
    assert [{k: e[k] for k in written[0]} for e in shown] == written


def test_an_excursion_of_every_arm_is_data_and_its_batch_and_documents_are_named(study, capsys):
    events = answer(capsys, "s", "--runs-dir", str(study.path.parent))["events"]
    caused = [e for e in events if e["cause"] == "data"]
    assert {e["trial"] for e in caused} == {"base-s1", "rms-s1"}
    worst = max(caused, key=lambda e: e["height"])
    assert worst["batch"] == worst["peak"]
    assert len(worst["sequences"]) == BATCH
    assert any(set(text) & set(NOISE) for text in worst["texts"])
    assert worst["documents"]
    assert main(["spikes", "s", "--runs-dir", str(study.path.parent)]) == 0
    assert f"batch {worst['batch']}, sequences" in capsys.readouterr().out


def test_an_arm_s_own_event_on_such_a_batch_has_no_batch_to_its_name(study, capsys, monkeypatch):
    def both(records):
        found = search(records)
        for name, events in found.items():
            own = [replace(e, cause="arm", detector="drift") for e in events if e.cause == "data"]
            found[name] = [*events, *own]
        return found

    monkeypatch.setattr("ablate.cli.spikes.search", both)
    events = answer(capsys, "s", "--runs-dir", str(study.path.parent))["events"]
    assert {e["cause"] for e in events} >= {"data", "arm"}
    assert all(("batch" in e) == (e["cause"] == "data") for e in events)


def test_a_batch_is_named_by_the_documents_that_are_in_it(study):
    config = DataConfig(**study.trial("base-s1").config()["data"])
    data = open_data(config, eos_token_id=256)
    tokens = np.concatenate([f.tokens() for f in data.train.files])
    for row in name_batch(data, 7, seed=1, batch_size=BATCH, sequence_length=LENGTH):
        start = row.sequence * LENGTH
        first = int((tokens[:start] == 256).sum())
        last = int((tokens[: start + LENGTH - 1] == 256).sum())
        assert row.documents == (first, last)
        assert not row.repetitive


def test_batches_that_responses_moved_are_found_all_the_same():
    done = [
        {"what": "rewind", "step": 50, "next_batch": 91},
        {"what": "skip_batch", "step": 60, "batch": 60, "instead": 1001},
    ]
    assert [number_of(s, done) for s in (50, 51, 60, 70)] == [50, 91, 1001, 110]


def test_a_replay_trains_the_recorded_losses_again_and_looks_into_each_layer(study, capsys):
    trial = study.trial("base-s1")
    before = sorted(p.name for p in trial.path.rglob("*"))
    found = answer(capsys, "replay", str(trial.path), "--step", "120", "--after", "2")
    assert (found["checkpoint"], found["same"]) == (100, True)
    assert [s["step"] for s in found["steps"]] == [117, 118, 119, 120, 121, 122]
    at = found["steps"][3]
    losses = [r["loss"] for r in at["rows"]]
    assert losses == sorted(losses, reverse=True)
    assert np.mean(losses) == pytest.approx(at["train/loss"], rel=1e-5)
    total = sum(v * v for v in at["gradient_norm"].values()) ** 0.5
    assert total == pytest.approx(at["train/grad_norm"], rel=1e-4)
    assert {"0", "1"} <= set(at["gradient_norm"])
    assert {"activation_rms/0", "attention_logit_max/1"} <= set(at["model"])
    assert sorted(p.name for p in trial.path.rglob("*")) == before
    assert main(["spikes", "replay", str(trial.path), "--step", "12"]) == 0
    said, header, *rows = capsys.readouterr().out.splitlines()
    assert "from the beginning: the recorded losses" in said
    assert header.split() == ["step", *map(str, range(9, 16))]
    assert rows[0].startswith("loss")


def test_a_replay_knows_the_layers_of_blocks_in_groups(study, capsys, tmp_path):
    config = study.trial("base-s1").config()
    config["model"] |= {"block_group_size": 2}
    config["train"] |= {"steps": 2}
    trial = TrialDir(tmp_path / "grouped")
    trial.create(config, 2)
    run_trial(trial.acquire(), config)
    (at,) = answer(capsys, "replay", str(trial.path), "--step", "2", "--before", "0")["steps"]
    assert not any("blocks" in part or "groups" in part for part in at["gradient_norm"])
    assert {"0", "1"} <= set(at["gradient_norm"])


def test_a_replay_of_a_step_that_was_never_done_is_refused(study, capsys):
    path = str(study.trial("base-s1").path)
    assert main(["spikes", "replay", path, "--step", "999"]) == 2
    assert "1 to 250" in capsys.readouterr().err
    assert main(["spikes", "replay", "nowhere", "--step", "9"]) == 2


def test_following_says_each_event_once_and_ends_with_the_trial(study, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    loss = 3 + np.random.default_rng(0).normal(0, 0.05, 600)
    loss[300:303] += 2
    lines = [json.dumps({"step": i, "loss": x}) + "\n" for i, x in enumerate(loss.tolist())]
    path.write_text("")
    trial = SimpleNamespace(live_state=lambda: SimpleNamespace(status=status[0]))
    status, told = ["running"], [0]

    def grow(_: float) -> None:
        told[0] += 1
        with open(path, "a") as file:
            file.writelines(lines[100 * (told[0] - 1) : 100 * told[0]])
        status[0] = "done" if told[0] == 6 else "running"

    def read():
        records = open_records(str(path), "runs", None, None)
        records.trials["t"] = trial  # type: ignore[assignment]
        return records

    follow(read, as_json=True, sleep=grow)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["kind"], e["start"], e["closed"]) for e in events[:2]] == [
        ("spike", 300, False), ("spike", 300, True),
    ]  # fmt: skip
    assert {e["start"] for e in events} == {300}
    path.write_text("")
    status[0], told[0] = "running", 0
    follow(read, as_json=False, sleep=grow)
    alarm, end = capsys.readouterr().out.splitlines()
    assert "alarm at step 300" in alarm
    assert "recovered by step 302" in end


def test_an_offline_run_of_wandb_is_read_by_the_tracker(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "offline-run-20260101_000000-abc"
    folder.mkdir()
    (folder / "run-abc.wandb").write_bytes(b"")
    loss = 3 + np.random.default_rng(0).normal(0, 0.05, 300)
    loss[200:203] += 2
    rows = [{"_step": i, "train/loss": x} for i, x in enumerate(loss.tolist())]
    import ablate.track

    monkeypatch.setattr(ablate.track, "read_offline", lambda path: rows, raising=False)
    for path in (folder, tmp_path, folder / "run-abc.wandb"):
        (event,) = answer(capsys, str(path))["events"]
        assert (event["kind"], event["start"]) == ("spike", 200)
