"""A mistake costs one readable paragraph and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]

TINY = ["size=tiny", "train.steps=2"]
LONG = f"+sweep.factors.{'f' * 250}=['optim.lr=1e-2']"

MISTAKES: list[tuple[list[str], list[str]]] = [
    # the words of the command line
    (["tarin"], ["tarin", "train"]),
    (["launhc", "sweep=hello"], ["launhc", "launch"]),
    (["train", "--multi-run"], ["--multi-run", "--multirun"]),
    (["plan", "--jsno", "sweep=hello"], ["--jsno", "--json"]),
    (["train", "--steps=3"], ["--steps=3", "without dashes", "KEY=VALUE"]),
    (["launch", "sweep=hello", "--dryrun"], ["--dryrun", "--dry-run"]),
    (["status"], ["study"]),
    (["logs"], ["study"]),
    (["report"], ["study"]),
    (["diff", "a/b"], ["two trials"]),
    (["data", "prepaer"], ["prepare"]),
    (["list", "study=hello"], ["study=hello"]),
    (["list", "a_file"], ["a_file is no folder"]),
    (["list", "nowhere"], ["no folder nowhere"]),
    # unset variables of a script
    (["report", "s", "--metric", ""], ["--metric '' is empty"]),
    (["report", "s", "--out", " "], ["--out ' ' is empty"]),
    (["report", "s", "--baseline="], ["--baseline '' is empty"]),
    (["spikes", "curve.csv", "--plot", ""], ["--plot '' is empty"]),
    (["spikes", "curve.csv", "--plot", "picture"], ["--plot picture", ".png"]),
    (["bench", "--peer", ""], ["--peer '' is empty"]),
    (["status", "s", "--runs-dir", ""], ["--runs-dir '' is empty"]),
    (["status", "s", "runs_dir="], ["runs_dir= is empty"]),
    (["train", *TINY, "data.path="], ["data.path=: is empty"]),
    (["train", *TINY, "data.path=[a_file,'']"], ["data.path=", "is empty"]),
    (["train", *TINY, "data.validation_path="], ["data.validation_path=: is empty"]),
    (["train", *TINY, "data.cache_dir="], ["data.cache_dir=: is empty"]),
    # overrides that cannot be read, or name nothing
    (["train", *TINY, "seed"], ["seed"]),
    (["train", *TINY, "trian.steps=3"], ["trian", "train"]),
    (["train", *TINY, "train.stesp=3"], ["stesp", "steps"]),
    (["train", *TINY, "steps=3"], ["train.steps"]),
    (["train", *TINY, "positon=rope"], ["positon", "position"]),
    (["train", *TINY, "position=roep"], ["roep", "rope"]),
    (["train", "size=tinny"], ["tinny", "tiny"]),
    (["plan", "sweep=quux"], ["sweep=quux", "hello", "./sweeps/NAME.yaml"]),
    (["train", *TINY, "site=quux"], ["Known: example", "./conf/site/NAME.yaml"]),
    (["train", *TINY, "optim.learning_rate=1e-3"], ["Did you mean optim.lr?"]),
    (["train", *TINY, "model.layer_norm_type=a.b.C"], ["rms", "Did you mean a.b:C?"]),
    (["train", *TINY, "schedule.name=a.rate"], ["constant", "Did you mean a:rate?"]),
    (["train", *TINY, "optim.name=sgd"], ["adamw", "package.module:Object"]),
    (["train", *TINY, "optim.betas=[0.9,0.95"], ["optim.betas"]),
    (["train", *TINY, "position=rope,alibi"], ["position", "-m"]),
    (["train", *TINY, "sweep=hello"], ["sweep", "launch"]),
    # values of the wrong type, or out of range
    (["train", *TINY, "train.steps=-3"], ["train.steps=-3", "at least 1"]),
    (["train", *TINY, "train.steps=1.5"], ["train.steps=1.5", "whole number"]),
    (["train", *TINY, "train.batch_size=many"], ["train.batch_size=many"]),
    (["train", *TINY, "seed=-1"], ["seed=-1"]),
    (["train", *TINY, "optim.lr=0"], ["optim.lr"]),
    (["train", *TINY, "optim.betas=[0.9]"], ["optim.betas"]),
    (["train", *TINY, "model.rope=maybe"], ["model.rope=maybe"]),
    (["train", *TINY, "model.attention_dropout=1.5"], ["attention_dropout"]),
    (["train", *TINY, "optim.name=adam"], ["optim.name=adam", "adamw"]),
    (["train", *TINY, "precision.name=fp8"], ["fp8", "bf16"]),
    (["train", *TINY, "schedule.warmup=soon"], ["schedule.warmup"]),
    (["train", *TINY, "train.device=tpu"], ["train.device=tpu"]),
    (["train", *TINY, "train.device=cuda:99"], ["train.device"]),
    (["train", *TINY, "study=../elsewhere"], ["study"]),
    (["train", *TINY, "train.tokens=100"], ["train.steps", "sweep.budget.tokens"]),
    (["train", "sweep.seed=3"], ["sweep.seed=3", "no sweep"]),
    (["plan", "sweeep=hello"], ["sweeep", "sweep"]),
    (["plan", "sweep=hello", "sweep.seed=3"], ["sweep.seed", "sweep.seeds"]),
    (["plan", "sweep=hello", "data.path=nowhere"], ["data.path=nowhere", "no such file"]),
    (["plan", "sweep=hello", "data.path=empty.txt"], ["empty.txt", "empty"]),
    (["plan", "sweep=hello", "data.path=a_file"], ["a_file"]),
    (["plan", "sweep=hello", "data.path=short.txt"], ["at most 5 tokens", "too short"]),
    (["train", *TINY, "norm=noisy", "norm=rms"], ["norm=noisy is given too"]),
    (["train", *TINY, "optim.momentum=0.5"], ["no effect", "muon"]),
    # what contradicts itself
    (["train", *TINY, "model.alibi=true", "model.rope=true"], ["alibi", "rope"]),
    (["train", *TINY, "model.n_heads=7"], ["n_heads"]),
    (["train", *TINY, "train.micro_batch_size=5"], ["micro_batch_size", "batch_size"]),
    (["train", *TINY, "train.sequence_length=100000"], ["sequence_length"]),
    (["train", *TINY, "data.path=a", "data.dataset=b"], ["data.path"]),
    (["train", *TINY, "train.activation_checkpointing=some"], ["activation_checkpointing"]),
    (["train", *TINY, "optim.name=nowhere:Thing"], ["nowhere"]),
    (["train", *TINY, "spikes.name=nowhere:Thing"], ["spikes.name", "nowhere"]),
    (["train", *TINY, "model.layer_norm_type=nowhere:Norm"], ["nowhere"]),
    # files and folders
    (["train", *TINY, "data.path=absent.txt"], ["data.path", "absent.txt"]),
    (["train", *TINY, "data.path=empty.txt"], ["empty"]),
    (["train", *TINY, "data.corpus=kvj"], ["kvj", "kjv"]),
    (["train", *TINY, "runs_dir=a_file"], ["a_file"]),
    (["train", *TINY, "runs_dir=dangling"], ["runs_dir=dangling: cannot be written"]),
    (["status", "nothing"], ["nothing"]),
    (["report", "nothing"], ["nothing"]),
    (["logs", "nothing", "x"], ["nothing"]),
    (["diff", "nothing/a", "nothing/b"], ["nothing"]),
    # sweeps
    (["plan"], ["sweep"]),
    (["plan", "sweep=helo"], ["helo", "hello"]),
    (["launch"], ["sweep"]),
    (["launch", "sweep=helo"], ["helo", "hello"]),
    (["launch", "sweep=hello", "sweep.design=spiral"], ["spiral"]),
    (["launch", "sweep=hello", "sweep.seeds=0"], ["seeds"]),
    (["launch", "sweep=hello", "sweep.budget.steps=-5"], ["budget"]),
    (["launch", "sweep=hello", "sweep.factrs={}"], ["factrs", "factors"]),
    (["launch", "sweep=hello", "seed=1"], ["seed"]),
    (["launch", "sweep=hello", "force=true"], ["force"]),
    (["plan", "sweep=hello", "runs_dir="], ["runs_dir=", "is empty"]),
    (["launch", "sweep=hello", "runs_dir="], ["runs_dir=", "is empty"]),
    (["train", *TINY, "runs_dir="], ["runs_dir=", "is empty"]),
    (["launch", "sweep=hello", f"study={'s' * 201}"], ["study=", "at most 200"]),
    (["launch", "sweep=hello", LONG], ["shorter names"]),
    (["launch", "sweep=hello", "cluster=slrum"], ["slrum"]),
    (["launch", "sweep=hello", "--hold"], ["cluster=local", "--hold", "cluster=slurm"]),
    (["launch", "sweep=hello", "--hold", "cluster=debug"], ["cluster=debug", "--hold"]),
    (["plan", "sweep=elsewhere.yaml"], ["Copy it to sweeps/elsewhere.yaml", "sweep=elsewhere"]),
    (["plan", "sweep=sweeps/other.yml"], ["Copy it to sweeps/other.yaml", "sweep=other"]),
    (["plan", "sweeps/mine.yaml"], ["no study", "write sweep=mine"]),
    (["plan", "mine"], ["no study", "write sweep=mine"]),
    (["launch", "sweep=hello", "cluster.workers=0"], ["cluster.workers"]),
    (["launch", "sweep=hello", "train.device=cuda:99"], ["train.device"]),
    # multiruns
    (["train", "-m", *TINY, "position=rope,roep"], ["roep"]),
    (["train", "-m", *TINY, "seed=0,1", "trian.steps=3"], ["trian"]),
    (["train", "-m", *TINY, "seed=0,-1"], ["seed=-1"]),
    (["train", "-m", *TINY, "optim.lr=choice(1e-3"], ["optim.lr"]),
    (["train", "-m", *TINY, "seed=0,1", "hydra/launcher=slrum"], ["slrum"]),
]


def listing(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


def assert_one_paragraph(err: str, words: list[str]) -> None:
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert err.startswith("ablate")
    for word in words:
        assert word in err
    assert err.count("Known:") <= 1
    assert not ("must be one of" in err and "Known:" in err), "the list stands there once"


@pytest.mark.parametrize(("argv", "words"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_paragraph_and_leaves_nothing(
    call: Call, tmp_path: Path, argv: list[str], words: list[str]
) -> None:
    (tmp_path / "a_file").write_text("text")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "curve.csv").write_text("step,loss\n1,2\n2,1\n")
    (tmp_path / "short.txt").write_text("text")
    (tmp_path / "sweeps").mkdir()
    for name in ("elsewhere.yaml", "sweeps/other.yml", "sweeps/mine.yaml"):
        (tmp_path / name).write_text("# @package _global_\nsweep: {question: Which?}\n")
    before = listing(tmp_path)
    code, out, err = call(*argv)
    assert code == 2, err
    assert_one_paragraph(err, words)
    assert out == ""
    assert listing(tmp_path) == before


@pytest.mark.parametrize("verb", [["train", *TINY], ["launch", "sweep=hello"]])
def test_cuda_graphs_are_refused_before_a_trial_is_written(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    """The plan cannot tell: train.device=auto ends on a CPU only where there is no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, out, err = call(*verb, "train.compile=true", "train.compile_mode=reduce-overhead")
    assert code == 2, err
    assert_one_paragraph(err, ["train.compile_mode=reduce-overhead", "on cpu", "default"])
    assert out == ""
    assert listing(tmp_path) == set()


@pytest.mark.parametrize(
    "argv", [["tarin"], ["train", "train.steps=-3"], ["launch", "sweep=helo"]], ids=" ".join
)
def test_so_it_is_in_a_process_of_its_own(
    tmp_path: Path, environment: dict[str, str], argv: list[str]
) -> None:
    command = [sys.executable, "-m", "ablate", *argv]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert_one_paragraph(done.stderr, [])
    assert done.stdout == ""
    assert listing(tmp_path) == set()


@pytest.mark.parametrize("text", ["soon", "inf", "nan"])
def test_a_variable_that_is_no_number_is_named(
    tmp_path: Path, environment: dict[str, str], text: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ablate", "list"],
        cwd=tmp_path,
        env={**environment, "ABLATE_LEASE_SECONDS": text},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert_one_paragraph(done.stderr, [f"ABLATE_LEASE_SECONDS={text}: is no number of seconds"])


def test_there_are_enough_of_them() -> None:
    assert len({" ".join(argv) for argv, _ in MISTAKES}) >= 60
