"""Trials that are trained as one batch of models: what is equal, what is separate, what goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.errors import DivergedError
from ablate.plan.stacking import graph_of
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.stacked import Stack
from tests.train.ran import events, rows, run, weights
from tests.train.tiny import without_clock

NAMES = ("stack", "alone")
Stops = dict[int, Callable[[], str | None]]


def train_together(
    folder: Path, settings: list[dict[str, Any]], stops: Stops | None = None, missing: tuple = ()
) -> list[Any]:
    """Each in a thread, all on the seats of one stack; results, or what was raised."""
    trials = [TrialDir(folder / f"{i}") for i in range(len(settings))]
    stack, ends = Stack([t.id for t in trials]), [None] * len(trials)
    there = [i for i in range(len(trials)) if i not in missing]
    seats = {i: stack.seat(trials[i].id) for i in there}

    def member(i: int) -> None:
        trial, own = trials[i], settings[i]
        trial.create(own, own["train"]["steps"])
        attempt = trial.acquire()
        stop = (stops or {}).get(i, lambda: None)
        try:
            ends[i] = run_trial(attempt, own, should_stop=stop, seat=seats[i])
        except BaseException as error:
            ends[i] = error
        finally:
            seats[i].leave()
        if getattr(ends[i], "status", "") == "preempted":
            attempt.release(trial.state().replace(status="preempted"))

    threads = [threading.Thread(target=member, args=(i,)) for i in there]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "the members wait for each other"
    return ends


def curve(folder: Path, number: int) -> list[dict[str, Any]]:
    return [without_clock(r) for r in rows(TrialDir(folder / f"{number}"))]


def members(config, count: int = 3, **sections: Any) -> list[dict[str, Any]]:
    """Seeds, rates and initialisations of one graph."""
    own = [
        {"seed": 3},
        {"seed": 4, "optim": {"lr": 3e-3, "name": "lion"}},
        {"seed": 3, "model": {"init_fn": "mitchell"}, "clip": {"name": "value"}},
        {"seed": 5, "spikes": {"name": "skip_step"}, "schedule": {"name": "constant"}},
    ]
    made = []
    for i in range(count):
        still = {f"{kind}_dropout": 0.0 for kind in ("attention", "residual", "embedding")}
        base = config(**{**sections, "model": {**still, **sections.get("model", {})}})
        for name, values in own[i].items():
            base[name] = {**base.get(name, {}), **values} if isinstance(values, dict) else values
        made.append(base)
    return made


OLMO2 = {
    "rope": True, "layer_norm_type": "rms", "attention_layer_norm": True, "norm_after": True,
    "weight_tying": False, "activation_type": "swiglu",
}  # fmt: skip
ACCUMULATED = {"train": {"steps": 20, "micro_batch_size": 2}, "loss": {"z_loss": 1e-4}}
LLAMA = {"alibi": True, "sliding_window": 8, "block_type": "llama"}
SINGLE = {"position": "none", "n_kv_heads": 1, "activation_type": "relu2"}
BIASED = {"position": "learned", "peri_norm": True, "include_bias": True}
PURE = {"precision": {"name": "pure_bf16"}, "model": {"layer_norm_type": "low_precision"}}


@pytest.mark.parametrize(
    ("sections", "tolerance"),
    [
        pytest.param({}, 1e-6, id="gpt2"),
        pytest.param({"model": OLMO2}, 1e-6, id="olmo2"),
        pytest.param(ACCUMULATED, 1e-6, id="accumulation"),
        pytest.param({"precision": {"name": "bf16"}}, 5e-3, id="bf16"),
        pytest.param({"model": SINGLE}, 1e-6, id="multi-query", marks=pytest.mark.slow),
        pytest.param({"model": LLAMA}, 1e-6, id="llama", marks=pytest.mark.slow),
        pytest.param({"model": BIASED}, 1e-6, id="peri-norm", marks=pytest.mark.slow),
        pytest.param(PURE, 2e-2, id="pure_bf16", marks=pytest.mark.slow),
    ],
)
def test_losses_are_those_of_trials_alone(sections, tolerance, config, tmp_path):
    sections = {"train": {"steps": 20}, **sections}
    settings = members(config, **sections)
    assert len({graph_of(own) for own in settings}) == 1
    results = train_together(tmp_path / "stack", settings)
    assert [getattr(r, "status", r) for r in results] == ["done"] * 3
    for i, own in enumerate(settings):
        alone = TrialDir(tmp_path / "alone" / f"{i}")
        summary = run(alone, own).summary
        pairs = list(zip(curve(tmp_path / "stack", i), rows(alone), strict=True))
        assert len(pairs) == 20
        for a, b in pairs:
            assert a["train/loss"] == pytest.approx(b["train/loss"], rel=tolerance), a["step"]
        assert a["lr"] == b["lr"]
        assert results[i].summary["val/loss"] == pytest.approx(summary["val/loss"], rel=tolerance)
        assert results[i].summary["stacked"] == 3
        assert "stacked" not in summary
    assert len({r.summary["val/loss"] for r in results}) == 3


def test_a_member_that_diverges_leaves_the_others_as_they_were(config, tmp_path):
    """Not a bit of theirs changes, whatever their neighbour is or does, or that it is not there."""
    calm = members(config, 3, train={"steps": 12})
    wild = [calm[0], {**calm[1], "optim": {"lr": 1e10}, "clip": {"name": "none"}}, calm[2]]
    train_together(tmp_path / "calm", calm)
    ends = train_together(tmp_path / "wild", wild)
    train_together(tmp_path / "gap", calm, missing=(1,))
    assert isinstance(ends[1], DivergedError)
    assert len(curve(tmp_path / "wild", 1)) < 12
    for i in (0, 2):
        assert ends[i].status == "done"
        assert curve(tmp_path / "wild", i) == curve(tmp_path / "calm", i)
        assert curve(tmp_path / "gap", i) == curve(tmp_path / "calm", i)
        a, b = (weights(TrialDir(tmp_path / n / f"{i}"), 12) for n in ("wild", "calm"))
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_stopped_at_different_steps_each_goes_on_from_its_own(config, tmp_path):
    settings = members(config, 3, train={"steps": 12, "checkpoint_every": 4})
    train_together(tmp_path / "whole", settings)

    def after(steps: int) -> Callable[[], str | None]:
        left = iter([None] * (steps - 1) + ["stop"])
        return lambda: next(left)

    ends = train_together(tmp_path / "parts", settings, {0: after(3), 1: after(7)})
    assert [e.status for e in ends] == ["preempted", "preempted", "done"]
    ends = train_together(tmp_path / "parts", settings, {0: after(5)}, missing=(2,))
    assert [e.step for e in ends[:2]] == [8, 12]
    train_together(tmp_path / "parts", settings, missing=(1, 2))
    for i in range(3):
        assert curve(tmp_path / "parts", i) == curve(tmp_path / "whole", i)
        a, b = (weights(TrialDir(tmp_path / n / f"{i}"), 12) for n in ("parts", "whole"))
        assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    "spikes",
    ["rewind", "skip_batch"]
    + [pytest.param(n, marks=pytest.mark.slow) for n in ("lower_lr", "clip_update", "stop")],
)
def test_each_responds_to_its_own_spikes(spikes, config, tmp_path, monkeypatch):
    """What is done about one member's loss concerns it alone, and is what it does by itself."""
    from ablate.train.respond import RESPONSES

    kind = RESPONSES[spikes]
    judge, answer = kind.judge, kind.answer

    def strike(self, step, loss, norm):
        if spikes == "skip_batch" and step == 9 and self.counts["skip_batch"] == 0:
            self.rule.judge(loss, norm)
            return self.refuse(step, "struck")
        return judge(self, step, loss, norm)

    def alarm(self, run, step, loss, seen):
        struck = type(seen)(alarm=step == 9 and self.config.window == 77, calm=seen.calm)
        return answer(self, run, step, loss, struck)

    monkeypatch.setattr(kind, "judge", strike)
    monkeypatch.setattr(kind, "answer", alarm)
    settings = members(config, 2, train={"steps": 16}, spikes={"name": spikes, "rewind_steps": 2})
    settings[1]["spikes"] = {"name": spikes, "rewind_steps": 2, "window": 77}
    train_together(tmp_path / "stack", settings)
    for i, own in enumerate(settings):
        alone = TrialDir(tmp_path / "alone" / f"{i}")
        run(alone, own)
        done, expected = (events(TrialDir(tmp_path / n / f"{i}"), "response") for n in NAMES)
        assert [e["what"] for e in done] == [e["what"] for e in expected]
        for a, b in zip(curve(tmp_path / "stack", i), rows(alone), strict=True):
            assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-5)


def test_the_record_says_who_sat_where(config, tmp_path):
    settings = members(config, 2)
    train_together(tmp_path, settings)
    for i in range(2):
        trial = TrialDir(tmp_path / f"{i}")
        (start,) = events(trial, "start")
        assert (start["stacked"], start["seat"]) == (2, i)
        assert list(start["attention"]) == ["math"]
        assert trial.newest_attempt().record()["seats"] == start["seats"] == ["0", "1"]


def test_a_checkpoint_holds_one_member(config, tmp_path):
    """It is written as if the trial were alone: without the weights of the others beside it."""
    settings = members(config, 3, train={"steps": 4, "checkpoint_every": 4})
    train_together(tmp_path / "stack", settings)
    run(TrialDir(tmp_path / "alone" / "0"), settings[0])
    of_stack, of_one = (
        {p.name: p.stat().st_size for p in (tmp_path / n / "0").rglob("*.pt")} for n in NAMES
    )
    assert len(of_one) == 2
    assert of_stack == pytest.approx(of_one, rel=0.02)
    kept = weights(TrialDir(tmp_path / "stack" / "0"), 4)
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in kept.values())


def test_no_mfu_is_told_of_a_share_of_the_device(config, tmp_path, monkeypatch):
    monkeypatch.setattr("ablate.train.trial.peak_flops", lambda *_: 1e12)
    settings = members(config, 2)
    stacked = train_together(tmp_path / "stack", settings)
    assert [end.summary["mfu"] for end in stacked] == [None, None]
    assert run(TrialDir(tmp_path / "alone"), settings[0]).summary["mfu"] > 0


def test_an_error_of_the_pass_reaches_every_member(config, tmp_path, monkeypatch):
    def full(*args):
        raise MemoryError("full")

    monkeypatch.setattr(Stack, "_losses", full)
    ends = train_together(tmp_path, members(config, 3))
    assert all(isinstance(end, MemoryError) for end in ends)


def test_without_memory_for_the_weights_each_member_says_so(config, tmp_path, monkeypatch):
    """And not the second one that something is missing which the first could not make."""
    zeros, made = torch.zeros, []

    def full(*args, **kwargs):
        if args and args[0] == 2 and "device" in kwargs:  # weights of two members
            made.append(args)
            if len(made) % 3 == 0:
                raise MemoryError("full")
        return zeros(*args, **kwargs)

    monkeypatch.setattr("ablate.train.stacked.torch.zeros", full)
    ends = train_together(tmp_path, members(config, 2))
    assert [type(end) for end in ends] == [MemoryError] * 2


def test_who_ends_first_leaves_the_others_their_settings(config, tmp_path: Path) -> None:
    """Threads and determinism are settings of the process, which every member is in."""
    found: list[tuple[int, int]] = []

    def look() -> None:
        found.append((torch.get_num_threads(), torch.get_deterministic_debug_mode()))

    before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    settings = members(config, 2)
    train_together(tmp_path, settings, {0: lambda: "preempted", 1: look})
    assert len(found) > 2
    assert set(found) == {(1, 1)}
    assert (torch.get_num_threads(), torch.get_deterministic_debug_mode()) == before
