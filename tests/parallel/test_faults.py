"""One process fails, or is gone: all end, soon, and the trial goes on later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from crew import STEPS, Config, Crew, Rows, largest_differences, said

from ablate.rundir import TrialDir


def losses(trial: TrialDir) -> list[float]:
    return [row["train/loss"] for row in trial.stitched()]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_one_ends_all_and_a_relaunch_goes_on(
    rank: int,
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
    alone: Callable[[Config], Rows],
) -> None:
    chosen = config(train={"checkpoint_every": 4})
    made = trial(chosen)
    began = time.monotonic()
    codes = crew.run(made, 2, {"rank": rank, "step": 10, "signal": "SIGKILL"})
    assert time.monotonic() - began < 60
    assert codes[rank] == -9
    assert codes[1 - rank] == 1, said(made)
    if rank:
        state = made.state()
        assert (state.status, state.outcome) == ("failed", "node")
        assert "gone without a word" in (state.reason or "")
    assert crew.run(made, 2) == [0, 0], said(made)
    newest = made.newest_attempt()
    assert newest is not None
    assert newest.record()["resumed"]["step"] == 8
    rows = list(made.stitched())
    assert len(rows) == STEPS
    assert largest_differences(rows, alone(chosen))["train/loss"] < 1e-6


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", ["oom", "code"])
def test_the_failure_of_one_is_told_as_it_was(
    error: str,
    rank: int,
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
) -> None:
    made = trial(config())
    assert crew.run(made, 2, {"rank": rank, "step": 3, "error": error}) == [1, 1], said(made)
    state = made.state()
    assert (state.status, state.outcome) == ("failed", error)
    assert "struck" in (state.reason or "")
    assert ("process 1" in (state.reason or "")) == (rank == 1)


def test_all_diverge_at_one_step(
    crew: Crew, config: Callable[..., Config], trial: Callable[[Config], TrialDir]
) -> None:
    made = trial(config(optim={"lr": 1e30}, clip={"name": "none"}))
    assert crew.run(made, 2) == [1, 0], said(made)
    assert made.state().status == "diverged"


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"parallel": {"name": "none"}}, "parallel.name=none"),
        ({"train": {"device": "cuda:1"}}, "train.device=cuda:1"),
        ({"train": {"batch_size": 3}}, "train.batch_size=3"),
        ({"parallel": {"name": "hsdp", "shard_size": 3}}, "parallel.shard_size=3"),
        ({"train": {"batch_size": 6, "micro_batch_size": 3}}, "train.micro_batch_size=3"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    sections: dict[str, Any],
    field: str,
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
) -> None:
    made = trial(config(**sections))
    assert crew.run(made, 2) == [1, 0]
    assert field in said(made)
    assert made.newest_attempt() is None


def test_the_silence_of_one_is_borne_for_so_long_and_no_longer(
    crew: Crew, config: Callable[..., Config], trial: Callable[[Config], TrialDir]
) -> None:
    """A process that is stopped keeps its connections; the others wait `parallel.timeout`."""
    made = trial(config(parallel={"timeout": 4}, train={"measure_every": 0}))
    fault = {"rank": 1, "step": 5, "signal": "SIGSTOP"}
    assert crew.run(made, 2, fault, timeout=60, moment=1) == [1, -9], said(made)
    state = made.state()
    assert (state.status, state.outcome) == ("failed", "node")
    assert state.heartbeat is not None
    assert state.started is not None
    assert state.heartbeat - state.started < 40
