"""The plan of a study: checked arms, numbered trials, what they cost and what they can show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ablate.design.rule import decide_hash
from ablate.plan.budget import tokens_per_step
from ablate.plan.power import Noise

__all__ = ["Plan", "PlannedArm", "PlannedTrial"]


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    name: str
    levels: dict[str, str]
    overrides: tuple[str, ...]
    reference: str | None
    config: dict[str, Any]
    """Canonical, with the first seed; its trials differ in seed and learning rate only."""
    diff: dict[str, list[Any]]
    """Dotted field -> [baseline, arm]."""
    change: dict[str, list[Any]]
    """Dotted field -> [reference, arm]."""
    parameters: int
    flops_per_token: int
    """Forward and backward, of one training token."""
    resized: dict[str, list[Any]] = field(default_factory=dict)
    """Dotted field -> [from, to]: what matching changed."""
    replaces: list[str] = field(default_factory=list)
    paired: str = ""
    """What a resized arm still shares with the others."""

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return {
            "name": self.name,
            "overrides": list(self.overrides),
            "levels": self.levels,
            "reference": self.reference,
            "diff": self.diff,
            "parameters": self.parameters,
            "flops_per_token": self.flops_per_token,
            "resized": self.resized,
        }


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    id: str
    arm: str
    seed: int
    lr: float | None
    """Where the study varies it."""
    config: dict[str, Any]
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return {k: getattr(self, k) for k in ("id", "arm", "seed", "lr", "fingerprint")}


@dataclass(frozen=True, kw_only=True)
class Plan:
    study: str
    question: str
    design: str
    baseline: str
    base: list[str]
    """Overrides that every arm starts from."""
    asked: dict[str, Any]
    """name, written and overrides of the sweep: what `ablate extend` plans again."""
    factors: dict[str, list[str]]
    decide: dict[str, Any]
    design_info: dict[str, Any] | None
    """What else there is to know of the design: aliases, orders, lineage."""
    match: str
    claim: dict[str, Any] | None
    runs_dir: str
    steps: int
    rates: list[float]
    """Of the bracket that every arm tries; empty where optim.lr holds."""
    arms: list[PlannedArm]
    trials: list[PlannedTrial]
    noise: Noise
    smallest_detectable_effect: float | None
    """True difference found with probability 0.8, in the metric's units; None: `undetectable`."""
    undetectable: str | None
    seeds_needed: int | None
    """For `decide.smallest_effect`; None where the noise is unknown."""
    notes: list[str] = field(default_factory=list)

    def arm(self, name: str) -> PlannedArm:
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def tokens(self) -> int:
        """Training tokens of one trial of the baseline."""
        return self.steps * tokens_per_step(self.arms[0].config)

    @property
    def total_tokens(self) -> int:
        each = {arm.name: self.steps * tokens_per_step(arm.config) for arm in self.arms}
        return sum(each[trial.arm] for trial in self.trials)

    @property
    def total_flops(self) -> int:
        each = {
            a.name: self.steps * tokens_per_step(a.config) * a.flops_per_token for a in self.arms
        }
        return sum(each[trial.arm] for trial in self.trials)

    def manifest(self) -> dict[str, Any]:
        """manifest.json, revision 1: frozen question, rule, arms and trials."""
        from ablate.plan.manifest import manifest_of

        return manifest_of(self)

    def to_json(self) -> dict[str, Any]:
        """What `ablate plan --json` prints; `trials` is their number."""
        arms = [
            {
                "arm": arm.name,
                **{k: v for k, v in arm.to_json().items() if k != "name"},
                "change": arm.change,
                "replaces": arm.replaces,
                "trials": sum(trial.arm == arm.name for trial in self.trials),
            }
            for arm in self.arms
        ]
        return {
            "study": self.study,
            "question": self.question,
            "design": self.design,
            "design_info": self.design_info,
            "baseline": self.baseline,
            "base": self.base,
            "factors": self.factors,
            "match": self.match,
            "budget": {"steps": self.steps, "tokens": self.tokens},
            "lr": self.rates,
            "decide": self.decide,
            "decide_hash": decide_hash(self.decide),
            "arms": arms,
            "trials": len(self.trials),
            "trial_ids": [trial.id for trial in self.trials],
            "tokens": self.total_tokens,
            "flops": self.total_flops,
            "smallest_detectable_effect": self.smallest_detectable_effect,
            "undetectable": self.undetectable,
            "seeds_needed": self.seeds_needed,
            "noise": {"sd": self.noise.sd, "df": self.noise.df, "source": self.noise.source},
            "notes": self.notes,
        }
