"""How far one trial is: a bar on a terminal, a plain line now and then elsewhere. On standard
error.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.rundir import State

__all__ = ["Bar", "Counted", "Lines", "duration", "progress_of_trial", "tell", "why"]

LINES = 10
"""Plain lines that a trial prints."""


def tell(text: str) -> None:
    """On standard error. Nothing stops where that is gone (a closed terminal, a full disk);
    only a pipe whose reader has left raises BrokenPipeError, as everywhere.
    """
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        pass


def progress_of_trial(id: str, steps: int) -> Bar | Lines:
    return Bar(id, steps) if sys.stderr.isatty() else Lines(id, steps)


class Lines:
    """About ten lines a trial."""

    def __init__(self, id: str, steps: int) -> None:
        self.id, self.steps = id, steps
        self._every = max(1, steps // LINES)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None: ...

    def see(self, row: dict[str, Any]) -> None:
        if row["step"] % self._every == 0 or row["step"] == self.steps or "val/loss" in row:
            # One call, not print's two, for this is part of a step. Standard error flushes lines.
            sys.stderr.write(f"{self.id}  step {row['step']}/{self.steps}  {metrics(row)}\n")


class Bar:
    """One line that is redrawn, a few times a second."""

    def __init__(self, id: str, steps: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=Console(stderr=True),
            refresh_per_second=5,
        )
        self._task = self._progress.add_task(id, total=steps, metrics="starting")
        self._drawn = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def see(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._drawn > 0.1 or "val/loss" in row:
            self._drawn = now
            self._progress.update(self._task, completed=row["step"], metrics=metrics(row))


class Counted:
    """So many of so many: a bar on a terminal, else a plain line for each; on standard error."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self._progress: Any = None

    def __enter__(self) -> Counted:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                       TextColumn("{task.fields[said]}", markup=False))  # fmt: skip
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task(self.what, total=self.total, said="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, said: str) -> None:
        self.done += 1
        if self._progress is not None:
            self._progress.update(self._task, completed=self.done, said=said)
        else:
            print(f"{self.done}/{self.total}  {said}", file=sys.stderr, flush=True)


def metrics(row: dict[str, Any]) -> str:
    """The figures of a row that people watch."""
    parts = [f"loss {row['train/loss']:.4f}"] if "train/loss" in row else []
    parts += [
        f"{key} {row[key]:.4f}" for key in ("val/loss", "val/bpb") if row.get(key) is not None
    ]
    if row.get("tokens_per_second"):
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    return "  ".join(parts)


def why(state: State) -> str:
    """The reason of a state, without the step that is said before it."""
    return (state.reason or "").removeprefix(f"diverged at step {state.step}").lstrip(": ")


def duration(seconds: float) -> str:
    """3 s, 4 min 10 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
