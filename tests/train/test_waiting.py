"""How often the loop waits for the device: once a step to decide, and once for several rows."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.train import clip_rule, loop, watch
from ablate.train.clip import CLIPS
from ablate.train.respond import RESPONSES
from tests.train.ran import run

STEPS = 8
ROWS = 4
"""Rows that are written at a time, where no response looks at each."""

ASKING = {
    "item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__",
    "nonzero", "masked_select", "unique", "is_nonzero", "equal", "allclose",
}  # fmt: skip
"""Of a tensor: answered by the host, so on a GPU only when all that was queued is done."""
FROM_HOST = {"tensor", "as_tensor", "new_tensor", "scalar_tensor"}
"""Copies from ordinary memory to the device, for which the host waits too."""
CPU_ONLY = {"quantile"}
"""Torch checks its argument by looking at it, on a CPU alone (ATen, quantile_checks)."""


class Count(TorchFunctionMode):
    """Counts what would wait on a GPU: what Python asks for, and copies to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.inside: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = getattr(function, "__name__", str(function))
        if name in ASKING | FROM_HOST:
            self.found[name] += 1
        self.inside.append(name)
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.inside.pop()


class Scalars(TorchDispatchMode):
    """Scalars that torch's own code fetches: inside of no call that is counted already."""

    def __init__(self, count: Count) -> None:
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function is torch.ops.aten._local_scalar_dense.default:
            inside = set(self.count.inside)
            if not inside & (ASKING | CPU_ONLY):
                self.count.found[f"a scalar in {self.count.inside[-1:]}"] += 1
        return function(*args, **(kwargs or {}))


def counted(trial, settings: dict[str, Any], monkeypatch) -> Counter[str]:
    """What the loop waited for in all steps but the last, which validates."""
    count, at_step = Count(), []
    seed = loop.seed_step

    def step_begins(*args: Any) -> None:
        at_step.append(count.found.copy())
        seed(*args)

    trained = loop.train
    monkeypatch.setattr(loop, "seed_step", step_begins)
    monkeypatch.setattr(watch, "MOST", ROWS)
    monkeypatch.setattr(watch, "SECONDS", 1e9)  # what is counted here is not the clock's
    monkeypatch.setattr(clip_rule, "asking_waits", lambda value: True)

    def watched(*args: Any) -> Any:
        with count, Scalars(count):
            return trained(*args)

    monkeypatch.setattr("ablate.train.trial.train", watched)
    run(trial, settings)
    assert len(at_step) == settings["train"]["steps"]
    return at_step[-1] - at_step[0]


def waits(found: Counter[str]) -> dict[str, int]:
    return {name: n for name, n in found.items() if n}


@pytest.mark.parametrize("clip", sorted(CLIPS))
def test_a_step_waits_once_whatever_clips(clip, config, trial, monkeypatch):
    settings = config(train={"steps": STEPS}, clip={"name": clip, "history": 2})
    found = waits(counted(trial, settings, monkeypatch))
    assert found == {
        "tolist": STEPS - 1 + STEPS // ROWS - 1
    }  # the last rows come with the last step


@pytest.mark.parametrize("spikes", sorted(RESPONSES))
def test_a_step_waits_twice_where_a_response_looks_at_each_row(spikes, config, trial, monkeypatch):
    settings = config(train={"steps": STEPS}, spikes={"name": spikes, "rewind_steps": 100})
    found = waits(counted(trial, settings, monkeypatch))
    # The size of the update: with the rows, at once where each is looked at, or where it decides.
    if spikes == "observe":
        assert found == {"tolist": STEPS - 1 + STEPS // ROWS - 1}
    elif spikes == "clip_update":
        assert found == {"tolist": STEPS - 1, "item": STEPS - 1}
    else:
        assert found == {"tolist": 2 * (STEPS - 1)}


@pytest.mark.parametrize(
    "sections",
    [
        {"precision": {"name": "bf16"}},
        {"precision": {"name": "fp16"}},
        {"precision": {"name": "fp16_protected"}},
        {"precision": {"name": "pure_bf16"}},
        {"optim": {"name": "muon"}},
        {"optim": {"name": "lion", "lr": 1e-3}},
        {"train": {"steps": STEPS, "micro_batch_size": 1}},
        {"loss": {"chunk": 16, "z_loss": 1e-4}},
        {"batching": {"name": "padded"}},
        {"model": {"residual_dropout": 0.1, "rope": True, "layer_norm_type": "rms"}},
    ],
    ids=str,
)
def test_no_option_waits_more_often(sections, config, trial, monkeypatch):
    settings = config(**{"train": {"steps": STEPS}, **sections})
    found = waits(counted(trial, settings, monkeypatch))
    assert found == {"tolist": STEPS - 1 + STEPS // ROWS - 1}


def test_the_count_sees_what_waits():
    count = Count()
    x = torch.arange(4.0)
    with count, Scalars(count):
        float(x[0])
        bool(x[1] > 0)
        x.tolist()
        x.new_tensor(3.0)
        torch.where(x > 1)[0]
        x[:: int(x[2])]
    assert count.found["__float__"] == count.found["__bool__"] == count.found["tolist"] == 1
    assert count.found["new_tensor"] == 1
    assert count.found["__int__"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("clip", sorted(CLIPS))
def test_cuda_says_the_same(clip, config, trial, monkeypatch):
    """CUDA's own warnings, of everything that synchronises."""
    settings = config(train={"steps": STEPS, "device": "cuda"}, clip={"name": clip})
    trained = loop.train

    def watched(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            return trained(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr("ablate.train.trial.train", watched)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(trial, settings)
    found = [w for w in caught if "synchroniz" in str(w.message)]
    validation = 20  # batches of the last step
    assert STEPS <= len(found) <= STEPS + STEPS // ROWS + validation
