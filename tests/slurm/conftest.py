"""One cluster a test process and variant, brought up when a test first asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cli"), str(HERE.parent / "launch")]

from slurm_box import Box, give_up, in_use, started, why_not  # noqa: E402 (found by the line above)


@pytest.fixture(scope="session")
def boxes() -> Iterator[Callable[..., Box]]:
    """`boxes(**knobs)`: the cluster with these knobs of `box/up.sh`, started at the first call.

    accounting="none", maxarray=5, preempt_params="enable_configless" (no signal to the user's
    step on preemption), cred=120, grace=0, nodes=2, extra="MoreLines=..." and so on.
    """
    if reason := why_not():
        give_up(reason)
    running: dict[tuple[tuple[str, str], ...], Box] = {}

    def box(**knobs: object) -> Box:
        key = tuple(sorted((k, str(v)) for k, v in knobs.items()))
        if key not in running:
            try:
                running[key] = started(**knobs)
            except RuntimeError as error:
                give_up(str(error))
        return running[key]

    try:
        yield box
    finally:
        for one in running.values():
            one.down()


@pytest.fixture
def box(boxes: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """The usual cluster (4 nodes of 4 CPUs and 2 GPUs, accounting, a signal before preemption),
    empty and whole; this process talks to it too.
    """
    yield from in_use(boxes(), monkeypatch)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
