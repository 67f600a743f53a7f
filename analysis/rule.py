"""The decision rule: written before the runs, frozen in the manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.analysis.multiplicity import CORRECTIONS
from ablate.errors import ConfigError

__all__ = ["Rule", "read_rule"]

_HIGHER_IS_BETTER = ("accuracy", "tokens_per_second", "score", "mfu")


@dataclass(frozen=True, kw_only=True)
class Rule:
    metric: str = "val/bpb"
    smallest_effect: float = 0.005
    """The smallest difference that matters, in units of the metric."""
    alpha: float = 0.05
    correction: str = "holm"

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise ConfigError("decide.alpha", self.alpha, "must lie in (0, 0.5)")
        if not self.smallest_effect >= 0:
            raise ConfigError(
                "decide.smallest_effect", self.smallest_effect, "must not be negative"
            )
        if self.correction not in CORRECTIONS:
            known = "must be one of " + ", ".join(CORRECTIONS)
            raise ConfigError("decide.correction", self.correction, known)

    @property
    def lower_is_better(self) -> bool:
        return not self.metric.rpartition("/")[2].startswith(_HIGHER_IS_BETTER)


def read_rule(manifest: Mapping[str, Any], metric: str | None = None) -> tuple[Rule, list[str]]:
    """The rule of a study, and why its result is only exploratory (empty: it is not).

    Args:
        manifest: of the study.
        metric: another metric than the frozen one, if any.
    """
    frozen = manifest.get("decide")
    names = {f.name for f in dataclasses.fields(Rule)}
    rule = Rule(**{k: v for k, v in (frozen or {}).items() if k in names and v is not None})
    reasons = []
    if not frozen or manifest.get("design") == "singles":
        reasons.append(
            "its trials were run one by one, without a plan: arms, seeds and decision rule were "
            "not fixed before the runs"
        )
    elif manifest.get("decide_hash") not in (None, _hash(frozen)):
        reasons.append("the decision rule was changed after the launch")
    if metric is not None and metric != rule.metric:
        reasons.append(
            f"{metric} is not the metric that was chosen before the runs ({rule.metric})"
        )
        rule = dataclasses.replace(rule, metric=metric)
    return rule, reasons


def _hash(decide: Mapping[str, Any]) -> str:
    """As the plan froze it: SHA-256 of JSON with sorted keys and no spaces."""
    text = json.dumps(decide, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
