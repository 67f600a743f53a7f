"""Responses to a spike that was recorded: go back, lower the rate, or end the trial."""

from __future__ import annotations

import math
from typing import Any

from ablate.config.schema import SpikesConfig
from ablate.spikes.responses import StopRule
from ablate.train.response import Observe, Seen, Trainable, Verdict

__all__ = ["LowerRate", "Rewind", "Stop"]


class Rewind(Observe):
    """At an alarm back to a snapshot in memory, and on with other batches (PaLM).

    The step goes on counting, so the record has each step once and what a rewind costs is charged
    to the trial. Snapshots are taken every `rewind_steps` steps while nothing is going on, two are
    kept, and the newer that is old enough is put back.
    """

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        super().__init__(config, steps)
        self.snapshots: list[dict[str, Any]] = []
        self.ahead = 0
        """By how many batches the data run ahead of the steps (negative: behind)."""
        self.quiet_until = 0

    def begin(self, run: Trainable) -> None:
        self.snapshots = [{"step": 0, "state": run.capture()}]

    def batch(self, step: int) -> int:
        return step + self.ahead

    def judge(self, step: int, loss: float, norm: float) -> Verdict:
        verdict = super().judge(step, loss, norm)
        return "skip" if verdict == "diverge" and self._may_act() else verdict

    def answer(self, run: Trainable, step: int, loss: float, seen: Seen) -> str | None:
        urgent = not math.isfinite(loss)
        if step < self.steps and self._may_act():
            if urgent or (seen.alarm and step >= self.quiet_until):
                self._go_back(run, step)
            elif step % self.config.rewind_steps == 0 and seen.calm:
                self.snapshots = [*self.snapshots[-1:], {"step": step, "state": run.capture()}]
        return None

    def _may_act(self) -> bool:
        return self.counts["rewind"] < self.config.limit

    def _go_back(self, run: Trainable, step: int) -> None:
        old = [s for s in self.snapshots if s["step"] <= step - self.config.rewind_steps]
        chosen = old[-1] if old else self.snapshots[0]
        run.put_back(chosen["state"])
        seen = step - chosen["step"]
        skipped = seen if self.config.skip_batches is None else self.config.skip_batches
        self.ahead += skipped - seen
        self.snapshots = [s for s in self.snapshots if s["step"] <= chosen["step"]]
        self.quiet_until = step + self.config.rewind_steps
        self.note("rewind", to=chosen["step"], skipped=skipped, next_batch=self.batch(step + 1))

    def state_dict(self) -> dict[str, Any]:
        state = {"snapshots": self.snapshots, "ahead": self.ahead, "quiet_until": self.quiet_until}
        return {**super().state_dict(), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.snapshots, self.ahead = list(state["snapshots"]), state["ahead"]
        self.quiet_until = state["quiet_until"]


class LowerRate(Observe):
    """At an alarm the learning rate times `lr_factor`; within `lr_steps` back to the schedule's."""

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        super().__init__(config, steps)
        self.factor, self.since = 1.0, 0

    def rate(self, step: int) -> float:
        back = self.config.lr_steps
        share = 0.0 if back is None else min(1.0, (step - 1 - self.since) / back)
        return self.factor + (1.0 - self.factor) * share

    def answer(self, run: Trainable, step: int, loss: float, seen: Seen) -> str | None:
        if seen.alarm and self.counts["lower_lr"] < self.config.limit:
            self.factor, self.since = self.rate(step + 1) * self.config.lr_factor, step
            self.note("lower_lr", factor=self.factor)
        return None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "factor": self.factor, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.factor, self.since = state["factor"], state["since"]


class Stop(Observe):
    """Ends the trial as diverged by `StopRule`."""

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        super().__init__(config, steps)
        self.rule = StopRule(config.patience)

    def answer(self, run: Trainable, step: int, loss: float, seen: Seen) -> str | None:
        if not self.rule.update(loss):
            return None
        level = self.rule.levels[-1]
        self.note("stop", level=level, best=self.rule.best)
        return f"loss {level:.4g} for {self.config.patience} steps, after {self.rule.best:.4g}"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rule": self.rule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rule.load_state_dict(state["rule"])
