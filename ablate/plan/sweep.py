"""A sweep as a user writes it: the `sweep:` section of a file in `sweeps/`, typed by field."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ablate.config.imports import load_object, require_known
from ablate.config.typed import build, check_types, closest, require
from ablate.design import DESIGNS, Design
from ablate.errors import ConfigError, PlanError
from ablate.plan.claim import read_claims
from ablate.plan.spending import alphas_at_looks

__all__ = ["DecideConfig", "SweepConfig", "design_function"]

METRICS = ("val/bpb", "val/loss", "val/perplexity", "train/loss")
"""What a trial's summary holds and a study can be decided on; lower is better."""


MOST_SEEDS = 10_000
EVERY_OTHER = "default"
"""In a bracket for each arm: that of the arms which are not named."""
DESIGN_OPTIONS = ("resolution", "orders", "arms", "draw_seed")


@dataclass(frozen=True, kw_only=True)
class DecideConfig:
    """The rule of the verdicts, written before the runs."""

    metric: str = "val/bpb"
    smallest_effect: float = 0.005
    """In units of the metric; smaller differences do not matter."""
    alpha: float = 0.05
    """Familywise, two-sided."""
    correction: Literal["holm", "dunnett"] = "holm"
    margin: float | None = None
    """Of the equivalence test; null: smallest_effect."""
    spending: list[int] | dict[str, Any] | None = None
    """Seeds of each arm at each look, `[3, 6]`, or {rule: obrien_fleming, looks: [3, 6]}; null: one
    look, and whatever is added later makes the result exploratory."""

    def __post_init__(self) -> None:
        check_types(self, "sweep.decide")
        known = self.metric in METRICS or self.metric.startswith("model/")
        reason = "must be one of " + ", ".join(METRICS) + ", or a measurement model/..."
        require(
            known,
            "sweep.decide.metric",
            self.metric,
            reason,
            closest(self.metric, METRICS, listed=True),
        )
        effect = self.smallest_effect
        ok = effect > 0 and math.isfinite(effect)
        remedy = "Equivalence means an interval inside plus or minus this"
        require(ok, "sweep.decide.smallest_effect", effect, "must be greater than 0", remedy)
        require(
            0 < self.alpha < 0.5, "sweep.decide.alpha", self.alpha, "must lie between 0 and 0.5"
        )
        margin = self.margin
        require(
            margin is None or (margin > 0 and math.isfinite(margin)),
            "sweep.decide.margin",
            margin,
            "must be greater than 0",
            "Or null, for smallest_effect",
        )
        self.alphas(1)

    @property
    def looks(self) -> list[int]:
        """Seeds of each arm at each declared look; empty where there is one look only."""
        if isinstance(self.spending, Mapping):
            return list(self.spending.get("looks") or [])
        return list(self.spending or [])

    @property
    def spending_rule(self) -> str:
        given = self.spending.get("rule") if isinstance(self.spending, Mapping) else None
        return str(given or "obrien_fleming")

    def alphas(self, comparisons: int) -> list[float]:
        """The familywise level of each look; raises ConfigError for looks that make no sense."""
        if self.spending is None:
            return []
        if isinstance(self.spending, Mapping):
            for key, value in self.spending.items():
                require(key in ("rule", "looks"), f"sweep.decide.spending.{key}", value,
                        "there is no such field", closest(str(key), ("rule", "looks")))  # fmt: skip
        return alphas_at_looks(
            self.alpha, self.looks, comparisons=comparisons, rule=self.spending_rule
        )

    def frozen(self, comparisons: int) -> dict[str, Any]:
        """As the manifest holds it: nothing is left open."""
        spending = None
        if self.spending is not None:
            spending = {
                "rule": self.spending_rule,
                "looks": self.looks,
                "alpha_at_look": self.alphas(comparisons),
            }
        return {
            "metric": self.metric,
            "smallest_effect": self.smallest_effect,
            "alpha": self.alpha,
            "correction": self.correction,
            "margin": self.smallest_effect if self.margin is None else self.margin,
            "spending": spending,
        }


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A question: baseline, factors, design, seeds, budget and decision rule."""

    question: str
    baseline: list[str] = field(default_factory=list)
    """Overrides of the baseline."""
    design: str = "one_factor"
    """A name in `ablate.design.DESIGNS`, or an import path."""
    resolution: int | None = None
    """Of fractional: 3, 4 or 5; null: 4."""
    orders: int | str | list[str] | None = None
    """Of a ladder: given, reverse, a list of these, or how many are drawn; null: given."""
    arms: int | None = None
    """Of random: combinations besides the baseline; null: 8."""
    draw_seed: int | None = None
    """Of what is drawn, orders or arms; null: 0."""
    factors: dict[str, Any] = field(default_factory=dict)
    seeds: int | list[int] = 3
    """How many, counted from 0, or which."""
    lr: float | list[float] | dict[str, Any] | None = None
    """A bracket of peak learning rates, tried by every arm, or one for each arm by its name, with
    `default` for the others; null: optim.lr."""
    match: Literal["params", "flops", "wallclock", "none"] = "none"
    """Arms are resized to the baseline's parameters, FLOPs or measured time per token."""
    budget: dict[str, Any] | None = None
    """One of steps, tokens or flops; null: train.steps."""
    pilot: int = 0
    """Seeds of the baseline that run first, to measure the noise; more than `seeds` are added."""
    noise: float | None = None
    """Residual standard deviation of a trial where it is known from elsewhere; null: measured."""
    throughput: float | None = None
    """Tokens per second of the baseline, for the hours of the plan; null: measured."""
    claim: Any = None
    """A statement from elsewhere that this sweep tests, or a list of them; see `ClaimConfig`.
    `read_claims` checks it, which can say more than a type."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Combinations that are left out: each a mapping of factors to a label or a list of labels."""
    decide: DecideConfig = field(default_factory=DecideConfig)

    def __post_init__(self) -> None:
        check_types(self, "sweep")
        require(bool(self.question.strip()), "sweep.question", repr(self.question), "is empty",
                "Write down what the sweep is to answer")  # fmt: skip
        self._check_design()
        self._check_seeds()
        self._check_rates()
        read_claims(self.claim)
        looks, seeds = self.decide.looks, len(self.seed_list)
        require(
            not looks or seeds in looks,
            "sweep.seeds",
            self.seeds,
            f"is none of the declared looks (sweep.decide.spending: {looks})",
            f"Start with {looks[0]} seeds, and add more with `ablate extend`" if looks else "",
        )
        require(self.pilot == 0 or self.pilot >= 2, "sweep.pilot", self.pilot,
                "must be 0, or 2 and more", "One seed has no scatter")  # fmt: skip
        for name in ("noise", "throughput"):
            value = getattr(self, name)
            ok = value is None or (value > 0 and math.isfinite(value))
            require(ok, f"sweep.{name}", value, "must be greater than 0", "Or null: measured")

    @property
    def design_options(self) -> dict[str, Any]:
        """The fields that the design alone reads, where they are given."""
        given = {name: getattr(self, name) for name in DESIGN_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}

    def _check_design(self) -> None:
        reads = inspect.signature(design_function(self.design)).parameters
        for name, value in self.design_options.items():
            if name not in reads:
                readers = [d for d, f in DESIGNS.items() if name in inspect.signature(f).parameters]
                reason = f"design={self.design} does not read it, only {' and '.join(readers)} do"
                raise ConfigError(f"sweep.{name}", value, reason, "Remove it")

    def _check_rates(self) -> None:
        require(self.lr != {}, "sweep.lr", "{}", "is empty", "Set it to null")
        for arm, given in self._brackets().items():
            name = f"sweep.lr.{arm}" if isinstance(self.lr, Mapping) else "sweep.lr"
            rates = given if isinstance(given, list) else [given]
            for rate in rates:
                ok = isinstance(rate, int | float) and not isinstance(rate, bool)
                require(ok, name, rate, "must be a number or a list of numbers")
                require(rate > 0 and math.isfinite(rate), name, rate, "must be greater than 0")
            require(len(set(rates)) == len(rates), name, rates, "names a learning rate twice")
            require(rates != [], name, "[]", "is empty", "Set sweep.lr to null, or leave it out")

    def _brackets(self) -> dict[str, Any]:
        if self.lr is None:
            return {}
        return dict(self.lr) if isinstance(self.lr, Mapping) else {EVERY_OTHER: self.lr}

    def _check_seeds(self) -> None:
        if isinstance(self.seeds, int):
            remedy = "Three or more give an interval"
            require(self.seeds >= 1, "sweep.seeds", self.seeds, "must be at least 1", remedy)
            most = f"must be at most {MOST_SEEDS:,}"
            require(self.seeds <= MOST_SEEDS, "sweep.seeds", self.seeds, most)
            return
        require(
            self.seeds != [],
            "sweep.seeds",
            "[]",
            "is empty",
            "Write a number of seeds, or name them",
        )
        require(
            len(set(self.seeds)) == len(self.seeds), "sweep.seeds", self.seeds, "names a seed twice"
        )
        require(min(self.seeds) >= 0, "sweep.seeds", self.seeds, "a seed must not be negative")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SweepConfig:
        """Raises ConfigError naming the field below `sweep`."""
        if "question" not in values:
            raise ConfigError(
                "sweep.question", None, "is missing", "Write down what the sweep is to answer"
            )
        values = dict(values)
        for key in ("factors", "decide"):
            if values.get(key) is None:
                values.pop(key, None)
        return build(cls, values, "sweep")

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    @property
    def pilot_seeds(self) -> list[int]:
        """The first of the sweep's seeds, and others where the pilot is larger."""
        seeds = self.seed_list
        further = range(max(seeds) + 1, max(seeds) + 1 + max(0, self.pilot - len(seeds)))
        return [*seeds[: self.pilot], *further]

    @property
    def rates(self) -> list[float]:
        """All that some arm tries; empty where optim.lr holds."""
        return list(dict.fromkeys(r for arm in self._brackets() for r in self.rates_of(arm)))

    @property
    def rated_arms(self) -> list[str]:
        """Arms that are named to have a bracket of their own."""
        return [arm for arm in self._brackets() if arm != EVERY_OTHER]

    def rates_of(self, arm: str) -> list[float]:
        """The bracket of an arm; empty where its own optim.lr holds."""
        brackets = self._brackets()
        given = brackets.get(arm, brackets.get(EVERY_OTHER, []))
        return [float(r) for r in (given if isinstance(given, list) else [given])]


def design_function(name: str) -> Design:
    """The design called `name`, or the function at an import path `package.module:function`."""
    if name in DESIGNS:
        return DESIGNS[name]
    require_known("sweep.design", name, DESIGNS)
    try:
        return load_object("sweep.design", name)
    except ConfigError as error:
        raise PlanError(str(error)) from None
