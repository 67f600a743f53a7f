"""`ablate spikes` on files, trials and mistakes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from ablate.cli import main

KEYS = {
    "kind", "start", "detect", "peak", "end", "start_row", "end_row", "height", "sigma", "area",
    "recovery", "recovery_steps", "residual", "cause",
}  # fmt: skip


def losses() -> np.ndarray:
    loss = 3 + np.random.default_rng(0).normal(0, 0.05, 600)
    loss[300:303] += 2
    return loss


def write(path, separator=",", step="step", loss="loss"):
    lines = [separator.join((step, "lr", loss))]
    lines += [separator.join((str(10 + i), "0.1", repr(float(x)))) for i, x in enumerate(losses())]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_file_becomes_one_json_object_with_the_promised_keys(tmp_path, capsys, name, separator):
    path = write(tmp_path / name, separator)
    assert main(["spikes", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    (event,) = json.loads(out)["events"]
    assert event.keys() >= KEYS
    assert (event["kind"], event["start"], event["start_row"]) == ("spike", 310, 300)
    assert json.loads(out)["scores"]["alerts"] == 1
    assert "loss = loss" in err


def test_json_lines_with_nan_and_rows_without_a_loss(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    rows = [f'{{"_step": {i}, "train_loss": {x!r}}}' for i, x in enumerate(losses().tolist())]
    rows.insert(200, '{"_step": 200, "val/loss": 3.0}')
    rows[450] = '{"_step": 449, "train_loss": NaN}'
    path.write_text("\n".join(rows) + '\n{"_step": 60')
    assert main(["spikes", str(path), "--json"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert [(e["kind"], e["start"], e["start_row"]) for e in events] == [
        ("spike", 300, 301), ("nonfinite", 449, 450),
    ]  # fmt: skip


def test_columns_can_be_named_and_a_wrong_name_lists_those_there_are(tmp_path, capsys):
    path = write(tmp_path / "a.csv", step="when", loss="what")
    assert main(["spikes", str(path), "--step", "when", "--loss", "what"]) == 0
    assert "spike" in capsys.readouterr().out
    assert main(["spikes", str(path), "--step", "when"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--loss" in err
    assert "when, lr, what" in err


def test_an_export_of_a_wandb_chart_names_its_run_before_the_metric(tmp_path, capsys):
    header = [f"calm-river-5 - train/loss{end}" for end in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{h}"' for h in ["Step", *header])]
    lines += [f'"{10 + i}","{x!r}","{x!r}","{x!r}"' for i, x in enumerate(losses().tolist())]
    path = tmp_path / "wandb_export.csv"
    path.write_text("\n".join(lines) + "\n")
    assert main(["spikes", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [(e["kind"], e["start"]) for e in json.loads(out)["events"]] == [("spike", 310)]
    assert "loss = calm-river-5 - train/loss" in err


def test_of_several_steps_the_training_s_own_is_taken_and_not_the_count_of_rows_logged(
    tmp_path, capsys
):
    path = tmp_path / "a.jsonl"
    rows = [
        {"_step": 2 * i, "train/global_step": 10 * i, "global_step": None, "train/loss": x}
        for i, x in enumerate(losses().tolist())
    ]
    rows.insert(50, {"_step": 99, "global_step": 490, "val/loss": 3.0})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert main(["spikes", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert [(e["kind"], e["start"]) for e in json.loads(out)["events"]] == [("spike", 3000)]
    assert "step = train/global_step" in err


def test_the_metric_of_an_exported_chart_is_enough_to_name_its_column(tmp_path, capsys):
    path = write(tmp_path / "a.csv", loss="calm-river-5 - lm/nats")
    assert main(["spikes", str(path), "--loss", "lm/nats"]) == 0
    assert "loss = calm-river-5 - lm/nats" in capsys.readouterr().err


def test_no_step_is_cut_short_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "late.csv"
    loss = 3 + np.random.default_rng(1).normal(0, 0.05, 1400)
    loss[700:] += 0.6
    rows = [f"{1_234_000 + 5 * i},{x!r}" for i, x in enumerate(loss.tolist())]
    path.write_text("\n".join(["step,loss", *rows]) + "\n")
    assert main(["spikes", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["events"]
    assert main(["spikes", str(path)]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    for event in found:
        for key in ("kind", "start", "peak", "end", "recovery"):
            assert str(event[key]) in out.split(), key


GARBAGE = {
    "bytes.csv": bytes(range(256)) * 40,
    "zeros.csv": bytes(4096),
    "header.csv": b"step,loss",
    "one.csv": b"step\n1\n2\n",
    "steps.csv": b"step,loss\nnan,1\ninf,2\n",
    "huge.csv": b"step,loss\n1e300,1\n2e300,2\n",
    "utf16.csv": "step,loss\n1,2\n".encode("utf-16"),
    "html.csv": b"<!doctype html><html><body>404</body></html>",
    "list.jsonl": b"[1, 2]\n[3]\n",
    "nested.jsonl": b'{"step": {"a": 1}, "loss": [1]}\n',
    "deep.jsonl": b"[" * 200_000,
    "bytes.jsonl": bytes(range(256)) * 40,
    "long.jsonl": b'{"step": 1, "loss": 1' + b"0" * 400 + b"}\\n",
    "number.jsonl": b'{"step": 1' + b"0" * 5000 + b', "loss": 1}\n',
    "text.tsv": "kein Verlust\nnirgends\n".encode("latin-1"),
    "bytes.wandb": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_in_one_paragraph(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_bytes(GARBAGE[name])
    assert main(["spikes", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert len(err) < 2000


def test_mistakes_are_one_paragraph(tmp_path, capsys):
    (tmp_path / "empty.csv").write_text("step,loss\n")
    (tmp_path / "words.csv").write_text("step,loss\n1,two\n")
    (tmp_path / "broken.jsonl").write_text("{\n{}\n")
    (tmp_path / "a.xlsx").write_text("")
    for name in ("empty.csv", "words.csv", "broken.jsonl", "a.xlsx", "absent.csv", "absent", "."):
        assert main(["spikes", str(tmp_path / name), "--runs-dir", str(tmp_path)]) == 2, name
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1
    assert main(["spikes"]) == 2


def test_a_plot_is_written(tmp_path, capsys):
    path = write(tmp_path / "a.csv")
    assert main(["spikes", str(path), "--plot", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert main(["spikes", str(path), "--plot", str(tmp_path / "a.nonsense")]) == 2
    capsys.readouterr()
    assert main(["spikes", "absent.csv", "--plot", str(tmp_path / "b.png"), "--follow"]) == 2
    assert "--plot" in capsys.readouterr().err


def test_the_arms_of_a_study_are_compared_seed_by_seed(tmp_path, capsys):
    study = tmp_path / "s"
    rng = np.random.default_rng(0)
    shared = 3 + rng.normal(0, 0.05, 600)
    trials = [("base", 0), ("rope", 0), ("base", 1)]
    for arm, seed in trials:
        folder = study / "trials" / f"{arm}-s{seed}" / "attempts" / "1"
        folder.mkdir(parents=True)
        loss = (shared if seed == 0 else 3 + rng.normal(0, 0.05, 600)) + rng.normal(0, 0.003, 600)
        loss[300:303] += 2 * (arm == "rope")
        loss[400:403] += 2 * (seed == 0)
        rows = [json.dumps({"step": i + 1, "train/loss": x}) for i, x in enumerate(loss.tolist())]
        (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
        (folder / "attempt.json").write_text('{"resumed": null}')
    named = [{"id": f"{arm}-s{seed}", "arm": arm, "seed": seed} for arm, seed in trials]
    (study / "manifest.json").write_text(json.dumps({"schema": 1, "trials": named}))
    # 1, for without configurations the batches have no names, and that is told.
    assert main(["spikes", "s", "--json", "--runs-dir", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    seen = {(e["trial"], e["start"], e["cause"]) for e in answer["events"]}
    assert seen == {
        ("base-s0", 401, "data"), ("rope-s0", 401, "data"), ("rope-s0", 301, "arm"),
    }  # fmt: skip
    assert set(answer["scores"]) == {"base-s0", "rope-s0", "base-s1"}
    for trial, _ in trials:
        (study / "trials" / f"{trial}-s0" / "config.yaml").write_text("seed: 0\n")
    assert main(["spikes", "s/rope-s0", "--json", "--runs-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["events"]
    for words in (["s/ro"], ["s/nome"], ["replay", "s/nome", "--step", "3"]):
        code = main(["spikes", *words, "--runs-dir", str(tmp_path)])
        assert code == (0 if words == ["s/ro"] else 2)
    assert "The study s has no trial 'nome'" in capsys.readouterr().err


def test_the_verb_needs_neither_torch_nor_pandas():
    code = (
        "import sys, ablate.cli.spikes\n"
        "assert not {'torch', 'pandas', 'hydra', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_compressed_file_is_read_like_the_plain_one(tmp_path, capsys):
    plain, packed = write(tmp_path / "run.csv"), tmp_path / "run.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    found = []
    for path in (plain, packed):
        assert main(["spikes", str(path), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["events"])
    assert found[0] == found[1]
    assert len(found[0]) == 1
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(packed.read_bytes()[:600])
    assert main(["spikes", str(torn)]) == 2
    assert "cannot be decompressed" in capsys.readouterr().err
