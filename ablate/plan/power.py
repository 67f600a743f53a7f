"""What a sweep can learn: how often it finds an effect of a given size, by the rule of the verdict.

An arm's difference from its reference is a mean over n seeds. Paired by seed, with the residual
standard deviation s of an arm + seed model pooled over A arms, df = (A - 1)(n - 1); unpaired, with
the standard deviation between seeds in place of the residual one, df = A (n - 1). The standard
error is se = s sqrt(2 / n). The verdict is `better` where the interval excludes 0 and the estimate
is at least the smallest effect that matters, e. With the critical value c of the correction,

    power(d) = E[ Phi((d - max(c S se, e)) / se) ],   S^2 = chi^2(df) / df,

an integral over the estimated spread S. For d = e it never exceeds one half: the estimate falls
short of its own mean every other time.

| correction | critical value |
|---|---|
| holm | t at a / (2 m): the first of m steps, at which one effect among nulls is tested |
| dunnett | of max abs(t) where all m comparisons share an arm; else Sidak's, which bounds it |
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

__all__ = ["COVERAGE", "POWER", "Noise", "Test"]

POWER = 0.8
COVERAGE = 0.8
"""Of the range of the power, where the spread is an estimate."""

MOST_SEEDS = 1000
_NODES = 128


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
    shared: bool = True
    """All comparisons have an arm in common."""
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
        return _critical(self.comparisons, self.df, self.alpha, self.correction, self.shared)

    def power(self, effect: float, sd: float) -> float:
        """The rate at which an arm that truly differs by `effect` is called better (or worse)."""
        if self.df < 1:
            return 0.0
        from scipy import special

        spread, weights = _spread(self.df)
        se = self.error(sd)
        if se == 0:
            return float(effect >= self.smallest_effect and effect > 0)
        bar = (self.critical() * spread * se).clip(min=self.smallest_effect)
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


@functools.lru_cache(maxsize=1024)
def _spread(df: int):  # two arrays; numpy is not imported for a plan without noise
    """Values of sqrt(chi^2 / df) and their probabilities, by Gauss-Legendre over the quantile."""
    import numpy as np
    from scipy import special

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return np.sqrt(2 * special.gammaincinv(df / 2, (nodes + 1) / 2) / df), weights / 2


@functools.lru_cache(maxsize=1024)
def _critical(m: int, df: int, alpha: float, correction: str, shared: bool) -> float:
    from scipy import special

    if m <= 1:
        return float(special.stdtrit(df, 1 - alpha / 2))
    if correction == "holm":
        return float(special.stdtrit(df, 1 - alpha / 2 / m))
    # Sidak's level is that of independent statistics, and the bound for any others.
    sidak = float(special.stdtrit(df, (1 + (1 - alpha) ** (1 / m)) / 2))
    if not shared:
        return sidak
    low, high = float(special.stdtrit(df, 1 - alpha / 2)), sidak
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _max_t_tail(middle, m, df) > alpha else (low, middle)
    return high


def _max_t_tail(q: float, m: int, df: int) -> float:
    """P(max |T_i| > q) of m statistics with pairwise correlation 1/2 and a common spread."""
    import numpy as np
    from scipy import special

    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    spread, probabilities = _spread(df)
    # Z_i = (X_i + X_0) / sqrt(2): given X_0 = x they are independent.
    edge, shift = math.sqrt(2) * q * spread[:, None], nodes[None, :]
    inside = (special.ndtr(edge - shift) - special.ndtr(-edge - shift)) ** m
    return float(1 - probabilities @ (inside @ (weights / math.sqrt(2 * math.pi))))
