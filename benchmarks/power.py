"""Is the power that a plan prints the rate at which the report finds a planted effect?

    python -m benchmarks.power                      # the table of docs/designs.md, a minute or two
    python -m benchmarks.power --studies 500        # quicker, rougher

Each study is drawn from arm + seed + noise, judged by the report's estimate, correction and rule
(for all studies of a row at once; `ablate.analysis.effects`, the report's own table, has to say the
same of a sample of them), and counted where the planted arm is called better. The second table asks
whether the 80 % range that a plan prints after a pilot of a few seeds holds the true power as often
as it says.
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
from ablate.analysis.multiplicity import max_t_quantile
from ablate.analysis.rule import Rule
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
SAMPLE = 25
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
        forest=tuple(range(-1, setting.arms - 1)) if setting.ladder else None,
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


def verdicts(setting: Setting, y: np.ndarray) -> np.ndarray:
    """Of the planted arm, one a study: whether it is called better. The report's estimate,
    critical values and rule, for all studies at once.

    Args:
        setting: of all studies.
        y: final values, [studies, arms, seeds].
    """
    rule, refs, n = rule_of(setting), references(setting), setting.seeds
    # With every cell filled the errors but for their scale are those of any one study.
    model = fit(np.repeat(list(refs), n), np.tile(np.arange(n), len(refs)), y[0].ravel())
    pairs = [(arm, ref) for arm, ref in refs.items() if ref is not None]
    one = model.contrasts(pairs)
    mean = y.mean(axis=2)
    rest = y - mean[:, :, None] - y.mean(axis=1)[:, None, :] + y.mean(axis=(1, 2))[:, None, None]
    sigma = np.sqrt((rest**2).sum(axis=(1, 2)) / model.df)
    place = {arm: i for i, arm in enumerate(refs)}
    d = np.stack([mean[:, place[arm]] - mean[:, place[ref]] for arm, ref in pairs], axis=1)
    error = sigma[:, None] * (one.error / model.sigma)
    critical = _critical(np.abs(d / error), one.correlation, model.df, rule)
    i = PLANTED - 1
    excludes = np.abs(d[:, i]) > critical * error[:, i]
    return excludes & (d[:, i] < 0) & (np.abs(d[:, i]) >= rule.smallest_effect)


def _critical(t: np.ndarray, correlation: np.ndarray, df: int, rule: Rule) -> np.ndarray:
    """The |t| that the planted arm needs in each study."""
    if rule.correction == "dunnett":
        return np.full(len(t), max_t_quantile(correlation, df, rule.alpha))
    k = t.shape[1]
    steps = stats.t.isf(rule.alpha / (k - np.arange(k)) / 2, df)
    order = np.argsort(-t, axis=1)
    kept = np.take_along_axis(t, order, axis=1) < steps
    first = np.where(kept.any(axis=1), kept.argmax(axis=1), k)  # where Holm stops
    rank = np.argmax(order == PLANTED - 1, axis=1)
    return steps[np.minimum(rank, np.minimum(first, k - 1))]


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
    rng = np.random.default_rng(seed)
    y = np.stack([drawn(setting, effect, rng) for _ in range(studies)])
    better = verdicts(setting, y)
    for i in range(min(SAMPLE, studies)):
        if better[i] != (verdict_of_the_table(setting, y[i]) == "better"):
            raise AssertionError(f"the table says otherwise than its parts: {setting}, study {i}")
    return float(better.mean())


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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
