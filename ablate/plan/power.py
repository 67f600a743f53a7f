"""What a sweep can learn: how often it finds an effect of a given size, by the rule of the verdict.

An arm's difference from its reference is a mean over n seeds. Paired by seed, with the residual
standard deviation s of an arm + seed model pooled over A arms, df = (A - 1)(n - 1); unpaired, with
the standard deviation between seeds in place of the residual one, df = A (n - 1). The standard
error is se = s sqrt(2 / n). The verdict is `better` where the interval excludes 0 and the estimate
is at least the smallest effect that matters, e. With the critical value c of the correction,

    power(d) = E[ Phi((d - max(c S se, e)) / se) ],   S^2 = chi^2(df) / df,

an integral over the estimated spread S. For d = e it never exceeds one half: the estimate falls
short of its own mean every other time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ablate.plan.critical import Forest, critical, spread, star

__all__ = ["COVERAGE", "POWER", "Noise", "Test"]

POWER = 0.8
COVERAGE = 0.8
"""Of the range of the power, where the spread is an estimate."""

MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of one trial, in units of the metric, and where they are from."""

    sd: float | None
    """Residual of arm + seed: what is left once trials are paired by seed."""
    df: int
    """Degrees of freedom of `sd`; 0: it is given, not estimated."""
    source: str
    """The studies it was read off, or why there is none."""
    unpaired: float | None = None
    """Between the seeds of one arm."""
    kind: str = "none"
    """studies; pilot, where one arm alone has run and pairing is taken to remove nothing; given."""

    def range(self) -> tuple[float, float] | None:
        """The sd with the coverage COVERAGE, by the chi-squared distribution; None: it is given."""
        if self.sd is None or not self.df:
            return None
        from scipy import special

        low, high = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
        quantile = [2 * special.gammaincinv(self.df / 2, q) for q in (high, low)]
        return tuple(self.sd * math.sqrt(self.df / q) for q in quantile)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Test:
    """The test that a verdict rests on."""

    __test__ = False  # not pytest's

    arms: int
    """The baseline included; all pool the residual."""
    seeds: int
    comparisons: int
    """Arms that are compared with a reference."""
    alpha: float
    """Familywise, two-sided."""
    correction: str = "holm"
    smallest_effect: float = 0.0
    """0 asks only whether the interval excludes 0."""
    forest: Forest | None = None
    """Who is compared with whom; None: all with the baseline."""
    paired: bool = True

    @property
    def df(self) -> int:
        return (self.arms - self.paired) * (self.seeds - 1)

    def error(self, sd: float) -> float:
        """Standard error of a difference."""
        return sd * math.sqrt(2 / self.seeds)

    def critical(self) -> float:
        """The |t| that is needed; infinite without degrees of freedom."""
        if self.df < 1:
            return math.inf
        forest = self.forest or star(self.comparisons)
        return critical(forest, self.df, self.alpha, self.correction)

    def power(self, effect: float, sd: float) -> float:
        """The rate at which an arm that truly differs by `effect` is called better (or worse)."""
        if self.df < 1:
            return 0.0
        from scipy import special

        values, weights = spread(self.df)
        se = self.error(sd)
        if se == 0:
            return float(effect >= self.smallest_effect and effect > 0)
        bar = (self.critical() * values * se).clip(min=self.smallest_effect)
        return float((weights * special.ndtr((effect - bar) / se)).sum())

    def power_range(self, effect: float, noise: Noise) -> tuple[float, float] | None:
        """Where the power lies with the coverage COVERAGE; None where the sd is given.

        More noise is less power, except for effects that matter too little to be called better: so
        the whole range of the sd is looked at.
        """
        found = noise.range()
        if found is None:
            return None
        low, high = found
        steps = 8 if effect <= self.smallest_effect else 1
        powers = [self.power(effect, low + (high - low) * i / steps) for i in range(steps + 1)]
        return min(powers), max(powers)

    def detectable(self, sd: float) -> float | None:
        """The smallest true difference found with the power POWER; None with one seed."""
        if self.df < 1:
            return None
        if sd == 0:
            return self.smallest_effect
        high = self.smallest_effect + self.error(sd)
        return _solve(lambda d: self.power(d, sd), high)

    def seeds_needed(self, effect: float, sd: float) -> int | None:
        """The fewest seeds that find `effect` with the power POWER; None above MOST_SEEDS."""

        def enough(n: int) -> bool:
            return replace(self, seeds=n).power(effect, sd) >= POWER

        if not enough(MOST_SEEDS):
            return None
        low, high = 1, MOST_SEEDS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


def _solve(power: Callable[[float], float], high: float) -> float:
    while power(high) < POWER:
        high *= 2
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) < POWER else (low, middle)
    return high
