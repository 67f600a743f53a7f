"""What a trial does about its own spikes: one class a response, asked three times a step.

    judge     before the update: update, skip, replace (by another batch) or diverge
    limit     after it: the share of the update that stays
    answer    when the row is written: go back, lower the rate, or end the trial

What was done is in `done` until the loop writes it down. Everything is a function of the record, so
an interrupted trial goes on as the undisturbed one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ablate.config.imports import is_import_path, load_object
from ablate.config.schema import SpikesConfig
from ablate.spikes.responses import OutlierRule, StopRule, UpdateCap

__all__ = ["RESPONSES", "Observe", "Seen", "Verdict", "build_response"]

Verdict = Literal["update", "skip", "replace", "diverge"]

REPLACEMENTS = 3
"""Batches that are tried in place of a bad one; after them the step is skipped."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the detector says about a step."""

    alarm: bool
    """It gives an alarm at this step."""
    calm: bool
    """No event is going on."""


class Trainable(Protocol):
    """What a response may lay hands on."""

    def capture(self) -> dict[str, Any]: ...

    def put_back(self, state: dict[str, Any]) -> None: ...


class Observe:
    """Nothing. An import path names a class with this interface, say a subclass.

    A loss or gradient norm that is not finite ends the trial.
    """

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        self.counts: Counter[str] = Counter()
        self.done: list[dict[str, Any]] = []

    def begin(self, run: Trainable) -> None:
        """Before the first step of all."""

    def batch(self, step: int) -> int:
        """The number of the batch that `step` trains on."""
        return step

    def rate(self, step: int) -> float:
        """A factor on the schedule's learning rate."""
        return 1.0

    def judge(self, step: int, loss: float, norm: float) -> Verdict:
        return "update" if math.isfinite(loss) and math.isfinite(norm) else "diverge"

    def limit(self, step: int, norm: float) -> float:
        return 1.0

    def answer(self, run: Trainable, step: int, loss: float, seen: Seen) -> str | None:
        """Returns why the trial is to be ended, or None."""
        return None

    def note(self, what: str, **fields: Any) -> None:
        self.counts[what] += 1
        self.done.append({"what": what, **fields})

    def columns(self) -> dict[str, Any]:
        """Of the row; none while there is nothing that a response could have done."""
        return {"spikes/responses": self.counts.total()}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = Counter(state["counts"])


class Silent(Observe):
    """The default: rows are those of a trial without any detector."""

    def columns(self) -> dict[str, Any]:
        return {}


class SkipStep(Observe):
    """No update at an outlier: weights, moments and decay stay as they were."""

    verdict: Verdict = "skip"

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        super().__init__(config, steps)
        self.rule = OutlierRule(config.window, config.sigmas)
        self.broken = 0
        """Steps in a row that were not finite."""

    def judge(self, step: int, loss: float, norm: float) -> Verdict:
        why = self.rule.judge(loss, norm)
        self.broken = self.broken + 1 if why == "not finite" else 0
        if self.broken > self.config.limit:
            return "diverge"
        if why is None:
            return "update"
        return self.refuse(step, why)

    def refuse(self, step: int, why: str) -> Verdict:
        self.note("skip_step", why=why)
        return "skip"

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rule": self.rule.state_dict(), "broken": self.broken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rule.load_state_dict(state["rule"])
        self.broken = state["broken"]


class SkipBatch(SkipStep):
    """Another batch in place of an outlier, from behind the last: the other steps keep theirs."""

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        super().__init__(config, steps)
        self.spare = 0
        """Batches taken from behind the last."""
        self.standing: tuple[int, int] | None = None
        """(step, batches tried in its place)."""

    def batch(self, step: int) -> int:
        tried = self._tried(step)
        return step if tried == 0 else self.steps + self.spare

    def refuse(self, step: int, why: str) -> Verdict:
        bad, tried = self.batch(step), self._tried(step)
        if tried == REPLACEMENTS:
            self.note("skip_step", why=why, batch=bad)
            return "skip"
        self.spare, self.standing = self.spare + 1, (step, tried + 1)
        self.note("skip_batch", why=why, batch=bad, instead=self.batch(step))
        return "replace"

    def _tried(self, step: int) -> int:
        return self.standing[1] if self.standing and self.standing[0] == step else 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "spare": self.spare}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.spare = state["spare"]


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
        chosen = (old or self.snapshots)[-1 if old else 0]
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


class ClipUpdate(Observe):
    """The whole update shrunk to its usual size."""

    def __init__(self, config: SpikesConfig, steps: int) -> None:
        super().__init__(config, steps)
        self.cap = UpdateCap(config.window, config.sigmas)

    def limit(self, step: int, norm: float) -> float:
        factor = self.cap.factor(norm)
        if factor < 1:
            self.note("clip_update", norm=norm, factor=factor)
        return factor

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "cap": self.cap.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.cap.load_state_dict(state["cap"])


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


RESPONSES: dict[str, type[Observe]] = {
    "observe": Silent,
    "skip_step": SkipStep,
    "skip_batch": SkipBatch,
    "rewind": Rewind,
    "lower_lr": LowerRate,
    "clip_update": ClipUpdate,
    "stop": Stop,
}


def build_response(config: SpikesConfig, steps: int) -> Observe:
    """The response that `config` names, for a trial of `steps` steps."""
    if is_import_path(config.name):
        return load_object("spikes.name", config.name)(config, steps)
    return RESPONSES[config.name](config, steps)
