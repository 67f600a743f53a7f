"""`ablate bench`: what it measures, beside whom, and what it refuses."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ablate.model import ModelConfig, OLMo
from ablate.rundir import StudyDir
from ablate.train import bench, loop
from ablate.train.adamw import FusedAdamW
from ablate.train.clock import alternate, ratio
from ablate.train.loader import Loader
from ablate.train.peers import PEERS, Peer, is_installed, logits_loss
from ablate.train.phases import PHASES
from ablate.train.precision import Precision
from benchmarks.step import FAMILIES, Shape, overrides
from tests.cli.conftest import ROOT, Call

OF_A_STEP = tuple(name for name in PHASES if name != "record")
"""What a step consists of; the record is between steps."""


def twin(objection: str | None = None) -> Peer:
    """A peer that is our own model."""
    return Peer(module="torch", objection=lambda config: objection, build=OLMo, loss=logits_loss)


def test_one_arm_by_phase(call: Call, small: list[str], tmp_path: Path) -> None:
    """Of two rounds a median is the mean, so that phases add up to the step."""
    code, out, _ = call("bench", *small, "--rounds", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert tuple(found["phases_ms"]) in (PHASES, OF_A_STEP)
    assert all(ms > 0 for ms in found["phases_ms"].values())
    assert sum(found["phases_ms"].values()) == pytest.approx(found["step_ms"], rel=0.1)
    seconds = found["step_ms"] / 1e3
    assert found["tokens_per_second"] == pytest.approx(found["tokens_per_step"] / seconds)
    assert 0 < found["mfu"] < 1
    assert found["peak_memory"] > 2**20
    assert list(found["attention"]) == ["sdpa"]
    assert (found["compiled"], found["rounds"], found["threads"]) == (False, 2, 1)
    assert not (tmp_path / "runs").exists(), "it writes nothing"
    code, out, err = call("bench", *small, "--rounds", "2")
    assert code == 0
    said = dict(re.findall(r"^  (\w+) +([\d.,]+) ms +[\d.]+%$", out, re.MULTILINE))
    assert list(said) == list(found["phases_ms"])
    step = re.search(r"([\d.,]+) ms a step", out)
    assert step is not None
    assert sum(map(float, said.values())) == pytest.approx(float(step[1]), rel=0.1, abs=0.3)
    assert "of 2,048 x" not in err


@pytest.mark.parametrize(
    ("precision", "instructions", "kind"),
    [
        ("bf16", True, "bfloat16"),
        ("pure_bf16", True, "bfloat16"),
        ("bf16", False, "float32"),
        ("fp16_protected", True, "float16"),
        ("fp32", True, "float32"),
    ],
)
def test_the_peak_of_a_cpu_is_that_of_the_products_of_the_step(
    call: Call,
    small: list[str],
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    instructions: bool,
    kind: str,
) -> None:
    """With AMX a product in bfloat16 is six times faster than one in float32."""
    multiplied: list[torch.dtype] = []
    randn = torch.randn

    def drawn(*shape: int, **options: Any) -> torch.Tensor:
        if shape == (8, 8):
            multiplied.append(options["dtype"])
        return randn(*shape, **options)

    monkeypatch.setattr(bench, "SQUARE", 8)
    monkeypatch.setattr(bench, "has_low_precision_products", lambda low: instructions)
    monkeypatch.setattr(torch, "randn", drawn)
    code, out, err = call("bench", *small, f"precision={precision}", "--rounds", "2", "--json")
    assert code == 0, err
    assert multiplied == [getattr(torch, kind)]
    assert json.loads(out)["peak_flops_source"] == f"measured: {kind} product of 8 x 8 matrices"


def test_what_is_timed_is_the_loop_that_trains(
    call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the loop does in a step costs its time here too."""
    norm, seconds, steps = loop.UpdateNorm.after, 0.05, []

    def slow(self: loop.UpdateNorm) -> torch.Tensor:
        time.sleep(seconds)
        steps.append(norm(self))
        return steps[-1]

    monkeypatch.setattr(loop.UpdateNorm, "after", slow)
    often = ["train.validate_every=1", "train.measure_every=1", "train.checkpoint_every=1"]
    monkeypatch.setattr(loop, "validate", None)
    monkeypatch.setattr(loop, "measure", None)
    code, out, err = call("bench", *small, *often, "--rounds", "7", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(steps) == 10, "three warm ones, and more than the trial has"
    assert found["phases_ms"]["optimiser"] > 1e3 * seconds
    assert found["step_ms"] > 1e3 * seconds


def test_one_place_waits_for_the_device() -> None:
    waiting = re.compile(r"torch\.(cuda|mps)\.synchronize\(")
    files = [p for top in ("ablate", "benchmarks") for p in (ROOT / top).rglob("*.py")]
    found = [p.relative_to(ROOT).as_posix() for p in files if waiting.search(p.read_text())]
    assert found == ["ablate/train/device.py"]


def test_phases_are_those_of_a_row(call: Call, small: list[str], tmp_path: Path) -> None:
    """`ablate bench` and a trial name the parts of a step alike."""
    assert call("train", *small, "study=s")[0] == 0
    (trial,) = StudyDir(tmp_path / "runs" / "s").trials()
    rows = [{k for k in row if k.startswith("time/")} for row in trial.stitched()]
    assert rows == [{f"time/{name}" for name in PHASES}] * 6


@pytest.mark.parametrize("phase", OF_A_STEP)
def test_a_phase_that_is_slow_is_the_one_that_takes_long(
    call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    pause, steps = 0.05, 5

    def slowly(does: Callable[..., Any]) -> Callable[..., Any]:
        def first(*words: Any, **named: Any) -> Any:
            time.sleep(pause)
            return does(*words, **named)

        return first

    places: dict[str, list[tuple[Any, str]]] = {
        "data": [(Loader, "take"), (bench, "to_tensors")],  # ahead of the step, or in it
        "forward": [(OLMo, "forward")],
        "backward": [(Precision, "backward")],
        "optimiser": [(FusedAdamW, "step")],
    }
    for owner, name in places[phase]:
        if hasattr(owner, name):
            monkeypatch.setattr(owner, name, slowly(getattr(owner, name)))
    code, out, _ = call("bench", *small, "--rounds", str(steps), "--json")
    assert code == 0
    phases = json.loads(out)["phases_ms"]
    assert phases[phase] >= 1e3 * pause
    assert max(phases, key=lambda name: phases[name]) == phase


def test_peers_beside_it(
    call: Call, small: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in list(PEERS):
        monkeypatch.delitem(PEERS, name)
    monkeypatch.setitem(PEERS, "twin", twin())
    monkeypatch.setitem(PEERS, "other", twin("has no such model"))
    code, out, _ = call("bench", *small, "--peers", "--rounds", "4", "--clock", "cpu", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["name"] for row in found["contenders"]] == ["ablate", "twin"]
    own, peer = found["contenders"]
    assert "ratio" not in own
    assert peer["low"] <= peer["ratio"] <= peer["high"]
    assert peer["ratio"] == pytest.approx(peer["step_ms"] / own["step_ms"])
    assert found["absent"] == {"other": "has no such model"}
    code, out, _ = call("bench", *small, "--peer", "twin", "--rounds", "2")
    assert code == 0
    assert "theirs / ours" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "1"], "two rounds at least"),
        (["--peer", "nobody"], "Known: ai2-olmo, transformers"),
        (["--compile-peers"], "add --peers"),
        (["--clock", "cpu"], "belongs to --peers"),
        (["--peer", "transformers", "position=sinusoidal"], "No peer can be timed beside this arm"),
        (["parallel=ddp"], "measured in one process"),
        (["attention=varlen"], "model.attention_backend=varlen"),
        (["train.device=cuda:7"], "CUDA devices"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    call: Call, small: list[str], words: list[str], message: str
) -> None:
    code, out, err = call("bench", *small, *words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PEERS))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_peer_has_as_many_parameters_and_a_like_loss(name: str, family: str) -> None:
    """As many weights as ours (a scale of a norm more or less), and log V at the start."""
    peer = PEERS[name]
    assert is_installed(peer), "the test dependencies hold every peer"
    from ablate.plan import single_trial

    words = overrides(family, Shape(d=64, layers=2, length=128))
    config = ModelConfig.from_mapping(single_trial(words).trial.config["model"])
    if (name, family) == ("ai2-olmo", "olmo3"):
        assert "has no field sliding_window_pattern" in (peer.objection(config) or "")
        return
    assert peer.objection(config) is None
    model = peer.build(config)
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(OLMo(config).num_params(), rel=0.01)
    ids = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))
    loss = peer.loss(model, ids)
    assert loss.item() == pytest.approx(np.log(config.embedding_rows), rel=0.1)


def test_rounds_alternate_and_a_ratio_is_of_medians() -> None:
    order: list[str] = []
    steps = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = alternate(steps, 3, warm=1)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys("abc", 3)
    own = np.array([1.0, 1.1, 0.9, 1.0])
    found = ratio(2 * own, own)
    assert (found.middle, found.low, found.high) == pytest.approx((2, 2, 2))
    noisy = ratio(np.array([1.0, 3.0, 2.0, 2.0]), own)
    assert noisy.low < noisy.middle < noisy.high
