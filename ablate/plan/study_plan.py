"""The plan of a study: checked arms, numbered trials, what they cost and what they can show."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.config.fingerprint import fingerprint
from ablate.design.rule import decide_hash
from ablate.plan.budget import tokens_per_step
from ablate.plan.memory import Memory, memory_of
from ablate.plan.power import Noise
from ablate.plan.speed import speed_key
from ablate.plan.stacking import Stacking, stacking_of

if TYPE_CHECKING:
    from ablate.plan.learning import Cost, Learning

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
    frozen: dict[str, Any] | None = None
    """The manifest's own entry, of an arm that was read off it."""

    @functools.cached_property
    def memory(self) -> Memory:
        """Of one GPU, or of one process on a CPU; by formula."""
        return memory_of(self.config)

    @functools.cached_property
    def attention(self) -> dict[str, dict[str, str]]:
        """Kind of device to kernel to the reason for it; raises ConfigError where none serves."""
        from ablate.plan.kernel_choice import attention

        return attention(self.config)

    @functools.cached_property
    def compiled(self) -> dict[str, dict[str, Any]]:
        """Kind of device to whether steps are compiled there, and why."""
        from ablate.plan.kernel_choice import compiled

        return compiled(self.config)

    @property
    def fingerprint(self) -> str:
        """Of the configuration without its seed: the same arm in any study."""
        return fingerprint({**self.config, "seed": None})

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        if self.frozen is not None:
            return dict(self.frozen)
        return {
            "name": self.name,
            "overrides": list(self.overrides),
            "levels": self.levels,
            "reference": self.reference,
            "diff": self.diff,
            "parameters": self.parameters,
            "flops_per_token": self.flops_per_token,
            "resized": self.resized,
            "fingerprint": self.fingerprint,
            "speed": speed_key(self.config),
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
    claim: list[dict[str, Any]] | None
    """What this study tests of what others said, frozen."""
    runs_dir: str
    steps: int
    seeds: int
    """Of each arm."""
    rates: list[float]
    """Of the bracket that every arm tries; empty where optim.lr holds."""
    arms: list[PlannedArm]
    trials: list[PlannedTrial]
    pilot_seeds: list[int]
    """Seeds of the baseline that run first; empty without a pilot."""
    noise: Noise
    learning: Learning
    cost: Cost
    notes: list[str] = field(default_factory=list)

    def arm(self, name: str) -> PlannedArm:
        return next(arm for arm in self.arms if arm.name == name)

    @property
    def pilot_trials(self) -> list[PlannedTrial]:
        """Those that run before the others, to measure the noise; `trials` begins with them."""
        pilot = set(self.pilot_seeds)
        return [t for t in self.trials if t.arm == self.baseline and t.seed in pilot]

    @functools.cached_property
    def stacking(self) -> Stacking | None:
        """Which trials are trained as one batch of models; None where that is not asked for."""
        size = self.trials[0].config["cluster"].get("stack") or 1
        if size == 1:
            return None
        pilot = {trial.id for trial in self.pilot_trials}
        phases = [
            stacking_of([(t.id, t.config) for t in self.trials if (t.id in pilot) is first], size)
            for first in (True, False)
        ]
        alone = {id: why for phase in phases for id, why in phase.alone.items()}
        return Stacking(stacks=[s for phase in phases for s in phase.stacks], alone=alone)

    @property
    def smallest_detectable_effect(self) -> float | None:
        """True difference called better or worse with probability 0.8, in the metric's units."""
        return self.learning.detectable

    @property
    def undetectable(self) -> str | None:
        """Why the smallest detectable effect is not known."""
        return self.learning.reason

    @property
    def seeds_needed(self) -> int | None:
        """To tell `decide.smallest_effect` from 0; None where the noise is unknown."""
        return self.learning.seeds_needed

    @property
    def tokens(self) -> int:
        """Training tokens of one trial of the baseline."""
        return self.steps * tokens_per_step(self.arms[0].config)

    @property
    def total_tokens(self) -> int:
        return self.cost.tokens

    @property
    def total_flops(self) -> int:
        return self.cost.flops

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
                "memory_per_gpu": arm.memory.to_json(),
                "attention": arm.attention,
                "compiled": arm.compiled,
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
            "claim": self.claim,
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
            "smallest_detectable_effect_unpaired": self.learning.detectable_unpaired,
            "smallest_main_effect": self.learning.main_effect,
            "seeds_needed": self.seeds_needed,
            "seeds_needed_unpaired": self.learning.seeds_needed_unpaired,
            "power": self.learning.power,
            "noise": asdict(self.noise),
            "pilot": [trial.id for trial in self.pilot_trials],
            "cost": self.cost.to_json(),
            "notes": self.notes,
            **({} if self.stacking is None else {"stacking": asdict(self.stacking)}),
        }
