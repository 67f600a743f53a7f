"""`ablate bench`: what it measures, beside whom, and what it refuses."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate.model import ModelConfig, OLMo
from ablate.train import loop
from ablate.train.clock import alternate, ratio
from ablate.train.peers import PEERS, Peer, is_installed, logits_loss
from benchmarks.step import FAMILIES, Shape, overrides
from tests.cli.conftest import ROOT, Call


def twin(objection: str | None = None) -> Peer:
    """A peer that is our own model."""
    return Peer(module="torch", objection=lambda config: objection, build=OLMo, loss=logits_loss)


def test_one_arm_by_phase(call: Call, small: list[str], tmp_path: Path) -> None:
    code, out, _ = call("bench", *small, "--rounds", "3", "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["phases_ms"]) == ["data", "forward", "backward", "optimiser"]
    assert all(ms > 0 for ms in found["phases_ms"].values())
    assert sum(found["phases_ms"].values()) == pytest.approx(found["step_ms"], rel=0.5)
    seconds = found["step_ms"] / 1e3
    assert found["tokens_per_second"] == pytest.approx(found["tokens_per_step"] / seconds)
    assert 0 < found["mfu"] < 1
    assert found["peak_memory"] > 2**20
    assert list(found["attention"]) == ["sdpa"]
    assert (found["compiled"], found["rounds"], found["threads"]) == (False, 3, 1)
    assert not (tmp_path / "runs").exists(), "it writes nothing"
    code, out, err = call("bench", *small, "--rounds", "2")
    assert code == 0
    assert "tokens/s" in out
    assert "of 2,048 x" not in err


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
