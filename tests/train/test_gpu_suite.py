"""The one command for a GPU, rehearsed on a CPU: what it writes, and what it never writes."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_parts import KERNELS, MASKS, PARTS, Part, Scale


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    said = capsys.readouterr().err
    assert "no GPU" in said
    assert "--rehearse" in said
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_is_marked_and_lies_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PARTS, "stacked", Part("T", "About.", lambda s: [{"a": 1.5, "b": None}]))
    assert gpu.main(["--rehearse", "--only", "stacked"]) == 0
    assert not (tmp_path / gpu.OUT).exists()
    text = (tmp_path / gpu.REHEARSED).read_text()
    assert text.startswith("# A rehearsal\n\n**A rehearsal on a CPU")
    assert "| a | b |\n|---|---|\n| 1.5 | – |" in text


def test_a_part_that_fails_says_so_and_the_others_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def broken(scale):
        raise RuntimeError("no such kernel\nat all")

    monkeypatch.setitem(PARTS, "compile", Part("Compiled", "", broken))
    monkeypatch.setitem(PARTS, "packed", Part("Packed", "", lambda s: [{"ratio": 2.0}]))
    assert gpu.main(["--rehearse", "--only", "compile", "--only", "packed"]) == 1
    text = (tmp_path / gpu.REHEARSED).read_text()
    assert "RuntimeError: no such kernel" in text
    assert "| ratio |" in text


def test_numerics_of_the_kernels_are_measured_against_float64():
    rows = PARTS["kernels"].measure(Scale.rehearsal())
    assert len(rows) == len(KERNELS) * len(MASKS) * 2
    for row in rows:
        assert "failed" not in row, row
        if row["kernel"] in ("sdpa", "math") and "refused" not in row:
            bound = 1e-5 if row["precision"] == "float32" else 0.1
            assert 0 < row["logits"] < bound, row
            assert 0 < row["gradient"] < 3 * bound, row
    measured = {(r["kernel"], r["mask"]) for r in rows if "refused" not in r}
    assert {(kernel, mask) for kernel in ("sdpa", "math") for mask in MASKS} <= measured


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PARTS if n != "kernels"])
def test_every_part_can_be_measured(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = PARTS[name].measure(Scale.rehearsal())
    assert rows
    assert not any("failed" in row for row in rows), rows


@pytest.mark.gpu
def test_a_stack_on_a_gpu_has_the_losses_of_a_cpu(tmp_path):
    """The same members, stacked on the GPU and one after another on the CPU."""
    from ablate.train.batch import to_tensors
    from ablate.train.loop import accumulate_gradients
    from ablate.train.run import assemble
    from ablate.train.stacked import Stack
    from benchmarks.stacked import configs

    members = 3
    stack = Stack([str(i) for i in range(members)])
    seats = [stack.seat(str(i)) for i in range(members)]
    for seat, config in zip(seats, configs(64, members, "cuda", []), strict=True):
        run = assemble(config, torch.device("cuda"))
        seat.take(run)
        seat.batch = to_tensors(run.next_batch(1), run.device)
    stack.compute(seats)
    for seat, config in zip(seats, configs(64, members, "cpu", []), strict=True):
        run = assemble(config, torch.device("cpu"))
        expected = accumulate_gradients(run, to_tensors(run.next_batch(1), run.device))
        assert seat.losses is not None
        assert seat.losses.cpu()[0].item() == pytest.approx(expected[0].item(), rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_with_cuda_graphs_a_trial_computes_the_same(mode, tmp_path):
    """Small models are bound by launches, which CUDA graphs save; they record at step two."""
    from ablate.config.compose import Composer
    from ablate.plan import resolve
    from ablate.rundir import TrialDir
    from tests.train.ran import rows, run

    words = ["model=olmo2", "size=tiny", "data=kjv", "train.batch_size=8", "train.device=cuda"]
    base = resolve(Composer().compose([*words, "train.sequence_length=64"]))
    losses = []
    for name, changes in (("eager", {}), (mode, {"compile": True, "compile_mode": mode})):
        config = {**base, "train": {**base["train"], "steps": 8, **changes}}
        made = TrialDir(tmp_path / name / "trials" / "trial")
        run(made, config)
        losses.append([row["train/loss"] for row in rows(made)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
