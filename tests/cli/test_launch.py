"""`ablate launch` with real training, and the verbs that read what it leaves."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate.cli import VERBS
from ablate.config.fingerprint import trial_id
from ablate.errors import DataError
from ablate.plan import plan_sweep
from ablate.rundir import STATUSES, StudyDir
from ablate.train import run_trial

Call = Callable[..., tuple[int, str, str]]

SWEEP = """
# @package _global_
sweep:
  question: Does RoPE help?
  baseline: []
  design: one_factor
  factors:
    position: [position=rope]
  seeds: 1
"""


@pytest.fixture
def sweep(tmp_path: Path, small: list[str]) -> list[str]:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.yaml").write_text(SWEEP)
    return ["sweep=mine", *small]


def files(folder: str = "runs") -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in Path(folder).rglob("*") if p.is_file()}


def test_a_launch_runs_what_is_missing_and_the_verbs_tell_of_it(
    call: Call, sweep: list[str]
) -> None:
    code, out, _ = call("launch", *sweep, "--dry-run")
    assert code == 0
    assert "2 of 2 trials would run" in out
    assert not Path("runs").exists()

    code, out, err = call("launch", *sweep)
    assert code == 0, err
    assert out == ""
    assert "2 done" in err
    assert "ablate report mine" in err
    before = files()

    code, _, err = call("launch", *sweep)
    assert code == 0
    assert files() == before, "launched again, nothing is written"

    code, out, _ = call("status", "mine", "--json")
    status = json.loads(out)
    assert code == 0
    assert set(status["counts"]) == set(STATUSES)
    assert status["counts"]["done"] == 2
    wanted = {"id", "arm", "seed", "status", "step", "steps", "attempt", "reason"}
    assert all(wanted <= set(t) for t in status["trials"])

    code, out, _ = call("list", "--json")
    (entry,) = json.loads(out)["studies"]
    assert (entry["study"], entry["state"], entry["question"]) == (
        "mine",
        "done",
        "Does RoPE help?",
    )

    first, second = (t["id"] for t in status["trials"])
    code, out, _ = call("diff", f"mine/{first}", f"runs/mine/trials/{second}", "--json")
    assert json.loads(out)["diff"]["model.rope"] == [False, True]
    assert call("logs", "mine", first)[0] == 0
    for verb in (["status", "mine"], ["list"], ["diff", f"mine/{first}", f"mine/{second}"]):
        assert call(*verb)[0] == 0

    code, _, err = call("launch", *sweep, "train.steps=7")
    assert code == 2
    assert "frozen" in err
    assert "study=mine-2" in err
    assert files() == before


def test_a_damaged_configuration_of_a_finished_trial_is_written_anew(
    call: Call, sweep: list[str]
) -> None:
    """By the command that made the study, which says so; status names it before."""
    assert call("launch", *sweep)[0] == 0
    trial, other = StudyDir(Path("runs/mine")).trials()
    path = trial.path / "config.yaml"
    before, of_other = path.read_text(), (other.path / "config.yaml").read_text()
    torn = before[: before.index("\ntrain:")]
    middle = len(before) // 2
    gap, flipped = (
        before[:middle] + before[middle + 60 :],
        before.replace("\n  lr: ", "\n  lr: 1", 1),
    )
    assert flipped != before
    texts = ("a: [1", "", torn, before + "\tx: 1\n", of_other, "train: 1\n", gap, flipped)
    for text in texts:
        path.write_text(text)
        code, out, _ = call("status", "mine")
        assert (code, f"damaged: {trial.id}: " in out) == (1, True), text
        assert other.id + ": " not in out
        code, _, err = call("launch", *sweep)
        assert code == 1, "it had something to mend"
        assert f"{trial.id}: " in err
        assert "written anew" in err
        assert path.read_text() == before
        assert call("status", "mine")[0] == call("launch", *sweep)[0] == 0
    assert len(list(trial.path.glob("config.yaml.damaged*"))) == len(texts)
    assert [len(t.attempts()) for t in (trial, other)] == [1, 1]


def test_a_damaged_manifest_moved_away_is_written_anew(call: Call, sweep: list[str]) -> None:
    """As it says itself; what has run stays."""
    assert call("launch", *sweep)[0] == 0
    path = Path("runs/mine/manifest.json")
    frozen = json.loads(path.read_text())
    path.write_text("{")
    code, _, err = call("launch", *sweep)
    assert code == 2
    assert "move it away and give the commands again that made the study" in err
    path.rename("damaged.json")
    assert call("launch", *sweep)[0] == 0
    anew = json.loads(path.read_text())
    same = ("arms", "trials", "question", "baseline", "decide")
    assert {k: anew[k] for k in same} == {k: frozen[k] for k in same}
    assert [len(t.attempts()) for t in StudyDir(Path("runs/mine")).trials()] == [1, 1]


def test_a_failing_arm_is_told_of_and_is_run_again_only_when_asked(
    call: Call, sweep: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "sweeps" / "mine.yaml"
    path.write_text(SWEEP.replace("position=rope", "model.layer_norm_type=odd_norms:Norm"))
    broken = (
        "import torch\n"
        "class Norm(torch.nn.LayerNorm):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(64)\n"
        "    def forward(self, x):\n"
        "        raise ZeroDivisionError('odd')\n"
    )
    (tmp_path / "odd_norms.py").write_text(broken)
    code, _, err = call("launch", *sweep)
    assert code == 1, err
    assert "ablate retry mine" in err
    states = [t.state() for t in StudyDir(Path("runs/mine")).trials()]
    assert [s.status for s in states] == ["done", "failed"]
    code, _, _ = call("launch", *sweep)
    assert code == 1
    assert [t.state() for t in StudyDir(Path("runs/mine")).trials()] == states


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_examples(call: Call, verb: str) -> None:
    code, out, err = call(verb, "--help")
    assert (code, err) == (0, "")
    assert "examples:" in out
    assert f"ablate {verb}" in out


def test_the_examples_name_trials_and_arms_that_the_demo_has(call: Call) -> None:
    """Each word as `pick_trial` and `pick_trials` read it, against the plan of sweep=hello."""
    plan = plan_sweep(["sweep=hello"])
    ids, arms = [t.id for t in plan.trials], [arm.name for arm in plan.arms]
    seen = 0
    for verb in [*VERBS, "spikes replay"]:
        _, out, _ = call(*verb.split(), "--help")
        for line in out.splitlines():
            words = line.strip().split("   ")[0].split()
            if words[:1] != ["ablate"]:
                continue
            named = [w.partition("/")[2] for w in words if w.startswith("hello/")]
            if words[2:3] == ["hello"] and words[1] in ("logs", "cancel", "retry"):
                named += [w for w in words[3:] if not w.startswith("-") and not w.isdigit()]
            for flag in ("--adopt", "--replace"):
                if flag in words and "hello" in words:
                    assert words[words.index(flag) + 1] in arms, line
                    seen += 1
            for word in named:
                assert word in arms or sum(word in id for id in ids) == 1, line
                seen += 1
    assert seen >= 15


def test_no_verb_shows_all_verbs(call: Call) -> None:
    code, out, _ = call()
    assert code == 0
    assert all(verb in out for verb in VERBS)
    assert call("--help")[1] == out


def test_in_this_process_for_a_debugger_and_what_was_deleted_is_run_again(
    call: Call, sweep: list[str]
) -> None:
    """`cluster=debug`; the remedy that is named for a trial whose folder is gone works."""
    words = [*sweep, "cluster=debug", "train.steps=2"]
    code, _, err = call("launch", *words)
    assert code == 0, err
    study = StudyDir(Path("runs/mine"))
    kept, gone = study.trials()
    assert err.count("step 2/2") == 2, "its progress is shown, as lines"
    assert [t.state().pid for t in (kept, gone)] == [os.getpid()] * 2
    before = kept.metrics_path.stat().st_mtime_ns
    shutil.rmtree(gone.path)
    assert call("status", "mine")[0] == 0
    code, _, err = call("retry", "mine", gone.id)
    assert code == 2
    command = err.partition("`")[2].partition("`")[0]
    assert command.startswith("ablate launch sweep=mine")
    code, _, err = call(*shlex.split(command)[1:])
    assert code == 0, err
    assert [t.state().status for t in study.trials()] == ["done", "done"]
    assert kept.metrics_path.stat().st_mtime_ns == before


@pytest.mark.parametrize("verb", ["launch", "train"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    call: Call, sweep: list[str], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("it has begun to work")

    for name in ("check_data", "check_data_of_all"):
        monkeypatch.setattr(f"ablate.launch.preflight.{name}", no_work)
    Path("file").touch()
    words = sweep if verb == "launch" else sweep[1:]
    for folder in ("file", "file/runs", "/proc/runs"):
        code, _, err = call(verb, *words, f"runs_dir={folder}")
        assert code == 2, err
        assert f"runs_dir={folder}" in err
    assert not Path("runs").exists()


def test_text_that_was_edited_between_two_launches_is_refused_and_nothing_runs(
    call: Call, sweep: list[str], tmp_path: Path
) -> None:
    """By the launch of what is missing, by a trial that is started otherwise, by `ablate train`."""
    words = [*sweep, "cluster=debug", "train.steps=2"]
    assert call("launch", *words)[0] == 0
    study = StudyDir(Path("runs/mine"))
    kept, gone = study.trials()
    shutil.rmtree(gone.path)
    text = tmp_path / "train.txt"
    before = text.read_text()
    text.write_text(before.replace("1 times 1", "one times one"))
    code, _, err = call("launch", *words)
    assert code == 2
    assert f"data.path={text}: the text has changed since the study mine was launched" in err
    assert "study=mine-2" in err
    assert not gone.attempts()
    (study.path / "data.json").unlink()  # as an older version left it
    assert call("launch", *words)[0] == 2
    text.write_text(before)
    assert call("launch", *words)[0] == 0
    assert gone.state().status == "done"
    text.write_text(before + " and more")
    config = {**kept.config(), "seed": 5}
    trial = study.trial(trial_id("baseline", config))
    trial.create(config, 2)
    with pytest.raises(DataError, match="the text has changed"):
        run_trial(trial.acquire(), config)
    assert call("train", *sweep[1:], "train.steps=2", "study=mine", "seed=7")[0] == 2


def test_a_plan_and_a_dry_run_say_that_an_arm_does_not_fit_this_machine(
    call: Call, sweep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the launch; on SLURM it is another machine."""
    monkeypatch.setattr("ablate.train.host.host_memory", lambda: 2**20)
    said = "this machine has 1.0 MiB"
    code, out, _ = call("plan", *sweep, "train.device=cpu", "--json")
    assert code == 0, "a plan may be made for another machine"
    assert said in " ".join(json.loads(out)["notes"])
    code, out, err = call("launch", *sweep, "train.device=cpu", "--dry-run")
    assert (code, out) == (2, "")
    assert said in err
    assert "ablate launch: Arm " in err
    code, out, err = call("launch", *sweep, "train.device=cpu", "cluster=debug")
    assert (code, out) == (2, "")
    assert said in err
    slurm = ["cluster=slurm", "cluster.time=10m", "cluster.memory=1G"]
    assert said not in call("plan", *sweep, *slurm, "--json")[1]
    assert not Path("runs").exists()


def test_a_dry_run_for_slurm_shows_its_request_where_there_is_no_slurm(
    call: Call, sweep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = [*sweep, "cluster=slurm", "cluster.time=10m"]
    code, out, err = call("launch", *words, "--dry-run")
    assert code == 0, err
    assert "sbatch" in out
    assert "without a look at limits and queue" in out
    assert "2 trials" in out
    code, _, err = call("launch", *words)
    assert code == 2
    assert "sbatch" in err
    assert not Path("runs").exists()


def test_offline_runs_for_want_of_a_key_are_said_once(
    call: Call, sweep: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for more, times in ((["track=wandb"], 1), (["track=wandb", "track.mode=offline"], 0), ([], 0)):
        _, _, err = call("launch", *sweep, *more, "--dry-run")
        assert err.count("no API key") == times
