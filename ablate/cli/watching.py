"""How far a launch is: live lines on a terminal, one line a finished trial elsewhere. On standard
error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from ablate.cli.overview import STYLES
from ablate.cli.progress import duration, metrics, tell, why
from ablate.rundir import ENDED, State, StudyDir, TrialDir

__all__ = ["Live", "Plain", "watcher_of"]


def watcher_of(study: StudyDir, trials: int, missing: int, workers: int) -> Live | Plain:
    kind = Live if sys.stderr.isatty() else Plain
    return kind(study, trials, missing, workers)


class Plain:
    """Lines, for logs and pipes."""

    def __init__(self, study: StudyDir, trials: int, missing: int, workers: int) -> None:
        self.trials, self.done = trials, trials - missing
        self._began = time.monotonic()
        self._say(
            f"{study.path}: {trials} trials, {self.done} ended before, "
            f"{missing} to run, {workers} at once"
        )

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None: ...

    def started(self, trial: TrialDir) -> None: ...

    def ended(self, trial: TrialDir, state: State) -> None:
        self.done += state.status in ENDED
        self._say(f"[{self.done}/{self.trials}] {story(trial, state)}")

    def waiting(self, trials: Sequence[TrialDir]) -> None:
        self._say(f"Waiting for {len(trials)} trials that another launch runs")

    def stopping(self, reason: str) -> None:
        self._say(f"{reason}: the running trials save and stop at their next step (again: at once)")

    def tick(self, running: Sequence[TrialDir]) -> None: ...

    def _say(self, text: str) -> None:
        tell(text)


class Live(Plain):
    """A bar for the study, and a line for each running trial, above which finished trials scroll
    by.
    """

    def __init__(self, study: StudyDir, trials: int, missing: int, workers: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True, highlight=False),
            refresh_per_second=4,
            transient=True,
        )
        self._missing, self._steps, self._drawn = missing, 0.0, 0.0
        self._bars: dict[str, Any] = {}
        super().__init__(study, trials, missing, workers)
        self._all = self._progress.add_task(study.name, total=trials, completed=self.done, note="")

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, trial: TrialDir) -> None:
        self._bars[trial.id] = self._progress.add_task(
            trial.id, total=trial.state().steps, note="starting"
        )

    def ended(self, trial: TrialDir, state: State) -> None:
        super().ended(trial, state)
        bar = self._bars.pop(trial.id, None)
        if bar is not None:
            self._progress.remove_task(bar)
        self._progress.update(self._all, completed=self.done)

    def tick(self, running: Sequence[TrialDir]) -> None:
        now = time.monotonic()
        if now - self._drawn < 0.5:
            return
        self._drawn, share = now, 0.0
        for trial in running:
            row = trial.latest_row()
            if row is not None and trial.id in self._bars:
                task = self._progress.tasks[self._progress.task_ids.index(self._bars[trial.id])]
                share += row["step"] / max(1, task.total or 1)
                self._progress.update(task.id, completed=row["step"], note=metrics(row))
        ours = self.done - (self.trials - self._missing) + share
        elapsed = now - self._began
        if ours > 0.05:
            rest = duration(elapsed / ours * max(0.0, self._missing - ours))
            self._progress.update(self._all, note=f"{rest} left")

    def _say(self, text: str) -> None:
        from rich.text import Text

        words = text.split()
        style = next((STYLES[w] for w in words[:4] if w in STYLES), "")
        self._progress.console.print(Text(text, style=style))


def story(trial: TrialDir, state: State) -> str:
    """`rope-s0-1a2b3c4d done: loss 2.31  val/bpb 3.33  (12 s)`."""
    if state.status == "done":
        summary = trial.summary() or {}
        shown = {
            k: v for k, v in summary.items() if k in ("train/loss", "val/bpb", "tokens_per_second")
        }
        return f"{trial.id} done: {metrics(shown)}  ({duration(summary.get('seconds', 0.0))})"
    where = f" at step {state.step} of {state.steps}"
    reason = why(state)
    return f"{trial.id} {state.status}{where}{': ' if reason else ''}{reason}"
