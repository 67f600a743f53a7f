"""The batches that a thread makes in advance are those of the order, whatever happens."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np
import pytest
import torch

from ablate.config.schema import TrialConfig
from ablate.errors import DivergedError
from ablate.train import trial as trial_module
from ablate.train.loader import Loader
from ablate.train.run import Run, assemble
from tests.train.ran import CPU, rows, run
from tests.train.tiny import without_clock


def ahead(monkeypatch, count: int) -> None:
    """Trials of this test make so many batches in advance."""
    monkeypatch.setattr(trial_module, "Loader", functools.partial(Loader, ahead=count))


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if "/loader" in t.name]


@pytest.mark.parametrize("batching", ["concat", "packed"])
def test_the_same_batches_in_the_same_order(batching, config):
    settings = TrialConfig.from_mapping(config(batching={"name": batching}, train={"steps": 30}))
    plain, early = assemble(settings, CPU), assemble(settings, CPU)
    with Loader(plain) as one, Loader(early, ahead=3) as other:
        for step in range(1, 31):
            a, b = one.take(step), other.take(step)
            assert torch.equal(a.input_ids, b.input_ids)
            assert torch.equal(a.labels, b.labels)
            assert (a.count, a.padding, a.max_doc_lens) == (b.count, b.padding, b.max_doc_lens)
        assert threads()
    assert not threads()


def test_another_batch_than_was_foreseen(config):
    ready = assemble(TrialConfig.from_mapping(config(train={"steps": 50})), CPU)
    shift = 0
    ready.response.batch = lambda step: step + shift  # type: ignore[method-assign]
    with Loader(ready, ahead=2) as loader:
        for step in range(1, 20):
            shift = 7 * (step in (5, 6, 11))  # as a rewind does, and back
            expected = ready.make_batch(step + shift).input_ids
            assert np.array_equal(loader.take(step).input_ids.numpy(), expected)


def test_nothing_beyond_the_last_step_is_made(config, monkeypatch):
    ready = assemble(TrialConfig.from_mapping(config(train={"steps": 5})), CPU)
    made, make = [], Run.make_batch
    monkeypatch.setattr(Run, "make_batch", lambda run, n: (made.append(n), make(run, n))[1])
    with Loader(ready, ahead=4) as loader:
        for step in range(1, 6):
            loader.take(step)
    assert made == [1, 2, 3, 4, 5]


def test_a_trial_is_the_same_and_goes_on_the_same(config, tmp_path, monkeypatch):
    from ablate.rundir import TrialDir

    settings = config(train={"steps": 12, "checkpoint_every": 4})
    plain, early = TrialDir(tmp_path / "plain"), TrialDir(tmp_path / "early")
    run(plain, settings)
    ahead(monkeypatch, 2)
    left = iter([None] * 5 + ["stop"])
    assert run(early, settings, should_stop=lambda: next(left)).status == "preempted"
    assert not threads()
    early.newest_attempt().release(early.state().replace(status="preempted"))
    run(early, settings)
    assert [without_clock(r) for r in rows(early)] == [without_clock(r) for r in rows(plain)]
    assert all(r["time/data"] >= 0 for r in rows(early))


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_error_comes_at_its_own_step_and_the_thread_ends(error, config, trial, monkeypatch):
    ahead(monkeypatch, 3)
    make = Run.make_batch

    def broken(ready, number):
        if number == 6:
            raise error("struck")
        return make(ready, number)

    monkeypatch.setattr(Run, "make_batch", broken)
    with pytest.raises(error, match="struck"):
        run(trial, config(train={"steps": 12}))
    assert [r["step"] for r in rows(trial)] == [1, 2, 3, 4, 5]
    assert not threads()


def test_the_thread_ends_where_training_does(config, trial, monkeypatch):
    ahead(monkeypatch, 2)
    with pytest.raises(DivergedError):
        run(trial, config(optim={"lr": 1e12}, clip={"name": "none"}, train={"steps": 200}))
    assert not threads()


def test_a_slow_source_is_overlapped(config, monkeypatch):
    """Making a batch costs what a step costs: in advance both pass at the same time."""
    ready, pause = assemble(TrialConfig.from_mapping(config(train={"steps": 20})), CPU), 0.02
    make = Run.make_batch
    monkeypatch.setattr(Run, "make_batch", lambda r, n: (time.sleep(pause), make(r, n))[1])
    waited = 0.0
    with Loader(ready, ahead=2) as loader:
        for step in range(1, 13):
            began = time.perf_counter()
            loader.take(step)
            waited += time.perf_counter() - began if step > 2 else 0.0
            time.sleep(2 * pause)  # the device computes
    assert waited < 10 * pause / 2


@pytest.mark.gpu
def test_on_a_gpu_batches_lie_ready_in_pinned_memory(config, trial):
    settings = config(train={"steps": 50, "device": "cuda"}, model={"d_model": 256})
    summary = run(trial, settings).summary
    assert summary["data_share"] < 0.05
