"""Is the power that a plan prints the rate at which the report finds a planted effect?

    python -m benchmarks.power                      # the table of docs/designs.md, a few minutes
    python -m benchmarks.power --studies 500        # quicker, rougher

Each study is drawn from arm + seed + noise, judged by the report's own estimate, correction and
verdict, and counted where the planted arm is called better (`ablate.analysis.effects`, which adds
what a table needs besides, agrees on a sample of them). The second table asks whether the 80 %
range that a plan prints after a pilot of a few seeds holds the true power as often as it says.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from ablate.analysis.effects import effects
from ablate.analysis.estimate import fit
from ablate.analysis.multiplicity import adjust
from ablate.analysis.rule import Rule
from ablate.analysis.verdict import Evidence, decide
from ablate.plan.power import Noise, Test

MULTIPLES = (1, 2, 4)


@dataclass(frozen=True)
class Setting:
    """arms (the baseline included), seeds, correction, smallest effect in standard errors."""

    arms: int
    seeds: int
    correction: str
    smallest: float
    ladder: bool = False


SETTINGS = (
    Setting(2, 3, "holm", 0.5),
    Setting(4, 3, "holm", 0.5),
    Setting(8, 3, "holm", 1.0),
    Setting(8, 5, "dunnett", 1.0),
    Setting(5, 4, "holm", 2.0),
    Setting(7, 3, "dunnett", 0.5, ladder=True),
)
SD = 0.004
PLANTED = 1
"""Index of the arm with the effect."""
SAMPLE = 10
"""Studies of each row that the whole table judges too."""


def references(setting: Setting) -> dict[str, str | None]:
    made: dict[str, str | None] = {"a0": None}
    for i in range(1, setting.arms):
        made[f"a{i}"] = f"a{i - 1}" if setting.ladder else "a0"
    return made


def test_of(setting: Setting) -> Test:
    return Test(
        arms=setting.arms,
        seeds=setting.seeds,
        comparisons=setting.arms - 1,
        alpha=0.05,
        correction=setting.correction,
        smallest_effect=setting.smallest * SD * (2 / setting.seeds) ** 0.5,
        shared=not setting.ladder,
    )


def drawn(setting: Setting, effect: float, rng: np.random.Generator) -> np.ndarray:
    """Final values, arms by seeds: what the seeds share is no noise to a paired comparison."""
    planted = np.zeros((setting.arms, 1))
    # In a ladder what a rung gains stays: the next ones are measured from there.
    planted[PLANTED : (None if setting.ladder else PLANTED + 1)] = -effect
    shared = rng.normal(0, 3 * SD, (1, setting.seeds))
    return 1 + planted + shared + rng.normal(0, SD, (setting.arms, setting.seeds))


def rule_of(setting: Setting) -> Rule:
    test = test_of(setting)
    return Rule(smallest_effect=test.smallest_effect, correction=setting.correction)


def verdict(setting: Setting, y: np.ndarray) -> str:
    """Of the planted arm, by the report's parts."""
    rule, refs, n = rule_of(setting), references(setting), setting.seeds
    model = fit(np.repeat(list(refs), n), np.tile(np.arange(n), len(refs)), y.ravel())
    contrasts = model.contrasts([(arm, ref) for arm, ref in refs.items() if ref is not None])
    t = contrasts.estimate / contrasts.error
    critical, _ = adjust(
        t, contrasts.correlation, model.df, alpha=rule.alpha, correction=rule.correction
    )
    i = PLANTED - 1
    d, se = float(contrasts.estimate[i]), float(contrasts.error[i])
    equal = float(stats.t.isf(rule.alpha, model.df)) * se
    evidence = Evidence(
        difference=d,
        low=d - critical[i] * se,
        high=d + critical[i] * se,
        equivalent_low=d - equal,
        equivalent_high=d + equal,
        seeds=n,
        reference_seeds=n,
        diverged=0,
        reference_diverged=0,
    )
    return decide(evidence, rule)[0]


def verdict_of_the_table(setting: Setting, y: np.ndarray) -> str:
    """The same by the report's whole table."""
    refs, n = references(setting), setting.seeds
    frame = pd.DataFrame(
        {
            "arm": np.repeat(list(refs), n),
            "seed": np.tile(np.arange(n), len(refs)),
            "value": y.ravel(),
        }
    )
    table, _ = effects(frame, refs, rule_of(setting))
    return str(table["verdict"].iloc[PLANTED])


def found(setting: Setting, effect: float, studies: int, seed: int) -> float:
    """The share of drawn studies in which the planted arm is called better."""
    rng, count = np.random.default_rng(seed), 0
    for i in range(studies):
        y = drawn(setting, effect, rng)
        said = verdict(setting, y)
        if i < SAMPLE and said != verdict_of_the_table(setting, y):
            raise AssertionError(f"the table says otherwise than its parts: {setting}, study {i}")
        count += said == "better"
    return count / studies


def rates(studies: int, settings: Sequence[Setting] = SETTINGS) -> Iterator[tuple]:
    """(setting, multiple of the standard error, stated power, rate found)."""
    for i, setting in enumerate(settings):
        test = test_of(setting)
        for multiple in MULTIPLES:
            effect = multiple * test.error(SD)
            rate = found(setting, effect, studies, seed=1000 * i + multiple)
            yield setting, multiple, test.power(effect, SD), rate


def coverage(seeds: int, studies: int, seed: int = 0) -> tuple[float, float]:
    """(share of pilots whose printed range holds the true power, the true power).

    The pilot is the baseline alone, so its sd is that between seeds, and the plan takes pairing to
    remove nothing of it; the truth is the power at the true sd.
    """
    test = Test(
        arms=5, seeds=4, comparisons=4, alpha=0.05, correction="holm", smallest_effect=0.002
    )
    effect = 3.2 * test.error(SD)
    truth = test.power(effect, SD)
    rng = np.random.default_rng(seed)
    held = 0
    for _ in range(studies):
        values = rng.normal(2.0, SD, seeds)
        sd = float(values.std(ddof=1))
        noise = Noise(sd=sd, df=seeds - 1, source="pilot", unpaired=sd, kind="pilot")
        low, high = test.power_range(effect, noise)  # type: ignore[misc]
        held += low <= truth <= high
    return held / studies, truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2000)
    options = parser.parse_args()
    print("| arms | seeds | correction | against | effect | stated power | found | difference |")
    print("|---:|---:|---|---|---:|---:|---:|---:|")
    worst = 0.0
    for setting, multiple, stated, rate in rates(options.studies):
        against = "previous" if setting.ladder else "baseline"
        print(
            f"| {setting.arms} | {setting.seeds} | {setting.correction} | {against} | "
            f"{multiple} se | {stated:.1%} | {rate:.1%} | {rate - stated:+.1%} |"
        )
        worst = max(worst, abs(rate - stated))
    print(f"\nLargest difference: {worst:.1%} ({options.studies} studies a row).\n")
    print("| pilot seeds | range holds the true power | true power |")
    print("|---:|---:|---:|")
    for seeds in (3, 4, 6, 10):
        share, truth = coverage(seeds, 10 * options.studies)
        print(f"| {seeds} | {share:.1%} | {truth:.1%} |")


if __name__ == "__main__":
    main()
