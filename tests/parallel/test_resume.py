"""A trial goes on with another number of processes as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable

from crew import STEPS, Config, Crew, Rows, largest_differences, said

from ablate.rundir import TrialDir
from ablate.rundir.names import EVENTS


def stop_after(step: int, rank: int) -> Config:
    """A polite signal to one process during the step."""
    return {"rank": rank, "step": step, "signal": "SIGUSR2"}


def test_one_two_four_one(
    crew: Crew,
    config: Callable[..., Config],
    trial: Callable[[Config], TrialDir],
    alone: Callable[[Config], Rows],
) -> None:
    """The signal reaches one process only; all of them stop at that step, with one checkpoint."""
    chosen = config(train={"micro_batch_size": 4}, clip={"name": "ratio", "max_ratio": 1.02})
    made = trial(chosen)
    for processes, step in ((1, 5), (2, 10), (4, 15)):
        crew.run(made, processes, stop_after(step, processes - 1))
        state = made.state()
        assert (state.status, state.step) == ("preempted", step), said(made)
        assert state.reason == "stopped by SIGUSR2"
        newest = made.newest_attempt()
        assert newest is not None
        assert newest.checkpoint_steps() == [step]
    assert crew.run(made, 1) == [0], said(made)
    rows = list(made.stitched())
    assert [r["step"] for r in rows] == list(range(1, STEPS + 1))
    found = largest_differences(rows, alone(chosen))
    for name in ("train/loss", "train/grad_norm", "val/loss"):
        assert found[name] < 1e-6, found
    resumed = [(a.record()["resumed"] or {}).get("step") for a in made.attempts()]
    assert resumed == [None, 5, 10, 15]
    starts = [e for e in made.stitched(EVENTS) if e["kind"] in ("start", "resume")]
    assert [e.get("processes", 1) for e in starts] == [1, 2, 4, 1]


def test_an_interruption_leaves_no_trace(
    crew: Crew, config: Callable[..., Config], trial: Callable[[Config], TrialDir]
) -> None:
    """With the same number of processes: bit for bit, dropout included."""
    chosen = config(model={"residual_dropout": 0.1}, train={"steps": 8, "measure_every": 0})
    whole = trial(chosen)
    assert crew.run(whole, 2) == [0, 0], said(whole)
    parts = TrialDir(whole.path.parents[2] / "again" / "trials" / whole.id)
    parts.create(chosen, 8)
    crew.run(parts, 2, stop_after(3, 0))
    assert crew.run(parts, 2) == [0, 0], said(parts)
    losses = [[r["train/loss"] for r in t.stitched()] for t in (whole, parts)]
    assert losses[0] == losses[1]
