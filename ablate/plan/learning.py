"""What a plan can learn, and at what cost: power by the frozen rule, FLOPs, hours, disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ablate.plan.budget import tokens_per_step
from ablate.plan.power import Noise, Test
from ablate.plan.speed import Speeds, speed_key
from ablate.plan.spending import look_of
from ablate.plan.study_plan import PlannedArm, PlannedTrial

__all__ = ["Cost", "Learning", "cost_of", "learning_of", "rule_test"]

MULTIPLES = (1, 2, 4)
"""Effects whose power is shown: so many times the standard error, and times the smallest effect."""

OPTIMIZER_STATES = {"adamw": 2, "lion": 1, "muon": 1}
BYTES_PER_STEP = 250
"""Of a row of metrics.jsonl and its place in metrics.parquet."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What the sweep finds, if the noise is what it seems."""

    detectable: float | None
    """True difference called better or worse with probability 0.8; None: `reason`."""
    detectable_unpaired: float | None
    reason: str | None
    seeds_needed: int | None
    """To tell the smallest effect of interest from 0; None where the noise is unknown."""
    seeds_needed_unpaired: int | None
    power: list[dict[str, Any]]
    """{effect, standard_errors, power, low, high}: low and high where the sd is an estimate."""
    main_effect: float | None = None
    """Of a factorial or a fraction of it: the smallest main effect told from 0."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    flops: int
    tokens: int
    hours: float | None
    """One trial after the other; None where no speed is known."""
    speed: str
    """Where the hours are from, or what would make them known."""
    disk: int
    """Bytes that stay: checkpoints and records."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rule_test(
    arms: Sequence[PlannedArm], decide: dict[str, Any], seeds: int, *, paired: bool = True
) -> Test:
    """The test of the frozen rule, at the level of the look that so many seeds are."""
    place = {arm.name: i for i, arm in enumerate(arms)}
    forest = tuple(place[arm.reference] if arm.reference else -1 for arm in arms)
    return Test(
        arms=len(arms),
        seeds=seeds,
        comparisons=sum(reference >= 0 for reference in forest),
        alpha=look_of(decide, seeds, [])["alpha"],
        correction=decide["correction"],
        smallest_effect=decide["smallest_effect"],
        forest=forest,
        paired=paired,
    )


def learning_of(
    arms: Sequence[PlannedArm],
    decide: dict[str, Any],
    seeds: int,
    noise: Noise,
    factors: int | None = None,
) -> Learning:
    """Args: `factors` of a factorial design, else None."""
    if noise.sd is None:
        return Learning(
            detectable=None,
            detectable_unpaired=None,
            reason=f"the noise is unknown: {noise.source}",
            seeds_needed=None,
            seeds_needed_unpaired=None,
            power=[],
        )
    paired, unpaired = (rule_test(arms, decide, seeds, paired=p) for p in (True, False))
    differs, differs_unpaired = (replace(t, smallest_effect=0.0) for t in (paired, unpaired))
    smallest = decide["smallest_effect"]
    return Learning(
        detectable=paired.detectable(noise.sd),
        detectable_unpaired=unpaired.detectable(noise.unpaired) if noise.unpaired else None,
        reason="one seed leaves no residual to judge by" if seeds < 2 else None,
        seeds_needed=differs.seeds_needed(smallest, noise.sd),
        seeds_needed_unpaired=(
            differs_unpaired.seeds_needed(smallest, noise.unpaired) if noise.unpaired else None
        ),
        power=_power(paired, smallest, noise) if seeds > 1 else [],
        main_effect=_main_effect(len(arms), seeds, factors, decide, noise.sd) if factors else None,
    )


def _power(test: Test, smallest: float, noise: Noise) -> list[dict[str, Any]]:
    assert noise.sd is not None
    se, rows = test.error(noise.sd), []
    effects = [*(k * se for k in MULTIPLES), *(k * smallest for k in MULTIPLES)]
    for effect in sorted(effects):
        found = test.power_range(effect, noise)
        rows.append(
            {
                "effect": effect,
                "standard_errors": effect / se if se else None,
                "power": test.power(effect, noise.sd),
                "low": found[0] if found else None,
                "high": found[1] if found else None,
            }
        )
    return rows


def _main_effect(
    arms: int, seeds: int, factors: int, decide: dict[str, Any], sd: float
) -> float | None:
    """The smallest main effect told from 0: half of all trials against the other half.

    Residual: trials less seeds, main effects and as many two-way interactions as the design tells
    apart.
    """
    terms = min(factors + factors * (factors - 1) // 2, arms - 1)
    df = arms * seeds - seeds - terms
    if df < 1:
        return None
    # A test of two "arms" of arms * seeds / 2 trials each, with these degrees of freedom.
    test = Test(
        arms=df + 1,
        seeds=2,
        comparisons=factors,
        alpha=decide["alpha"],
        correction="holm",
    )
    return test.detectable(sd * (2 / (arms * seeds)) ** 0.5 * 2**0.5)


def cost_of(
    arms: Sequence[PlannedArm],
    trials: Sequence[PlannedTrial],
    steps: int,
    speeds: Speeds,
    throughput: float | None,
) -> Cost:
    """FLOPs, hours on what was measured here (or on a throughput that is given), and disk."""
    by_name = {arm.name: arm for arm in arms}
    tokens = {arm.name: steps * tokens_per_step(arm.config) for arm in arms}
    rates, source = _rates(arms, speeds, throughput)
    hours = None
    if rates:
        hours = sum(tokens[t.arm] / rates[t.arm] for t in trials) / 3600
    return Cost(
        flops=sum(tokens[t.arm] * by_name[t.arm].flops_per_token for t in trials),
        tokens=sum(tokens[t.arm] for t in trials),
        hours=hours,
        speed=source,
        disk=sum(_disk(by_name[t.arm], steps) for t in trials),
    )


def _rates(
    arms: Sequence[PlannedArm], speeds: Speeds, throughput: float | None
) -> tuple[dict[str, float], str]:
    """Tokens per second of each arm, and where they are from."""
    if throughput is not None:
        base = arms[0].flops_per_token
        rates = {arm.name: throughput * base / arm.flops_per_token for arm in arms}
        return rates, f"at {throughput:,.0f} tokens/s of the baseline, as given"
    rates, sources = {}, dict[str, list[str]]()
    for arm in arms:
        exact = speeds.exact(speed_key(arm.config))
        speed = exact or speeds.near(arm.flops_per_token)
        if speed is None:
            return {}, "no finished trial of this size here; give sweep.throughput (tokens/s)"
        share = 1.0 if exact else speed.flops_per_token / arm.flops_per_token
        rates[arm.name] = speed.tokens_per_second * share
        by_flops = sources.setdefault(speed.study, [])
        by_flops += [] if exact else [arm.name]
    said = []
    for study, by_flops in sources.items():
        few = ", ".join(by_flops) if len(by_flops) <= 3 else f"{len(by_flops)} arms"
        said.append(f"{study} ({few} by its FLOPs)" if by_flops else study)
    return rates, f"at the speeds of {'; '.join(said)}"


def _disk(arm: PlannedArm, steps: int) -> int:
    """What a finished trial leaves: float32 checkpoints with the optimizer's state, if any."""
    train, optim = arm.config["train"], arm.config["optim"]
    every, keep = train["checkpoint_every"], train["keep_checkpoints"]
    written = 1 + ((steps - 1) // every if every else 0)
    kept = (written if keep < 0 else min(keep, written)) if train["keep_final"] else 0
    states = 1 + OPTIMIZER_STATES.get(optim["name"], 2)
    return kept * arm.parameters * 4 * states + steps * BYTES_PER_STEP
