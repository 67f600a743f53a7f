"""Responses to a step that stands out: no update, another batch, or a smaller update."""

from __future__ import annotations

from typing import Any

from ablate.config.schema import SpikesConfig
from ablate.spikes.responses import OutlierRule, UpdateCap
from ablate.train.response import Observe, Verdict

__all__ = ["ClipUpdate", "SkipBatch", "SkipStep"]

REPLACEMENTS = 3
"""Batches that are tried in place of a bad one; after them the step is skipped."""


class SkipStep(Observe):
    """No update at an outlier: weights, moments and decay stay as they were."""

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
