"""Alpha spending: at which level a study that is looked at several times is tested at each look.

Lan and DeMets (1983): a function gives the level alpha*(t) that may be spent until the fraction t
of all seeds is in, and the boundary of each look is solved for so that exactly as much is spent.

    obrien_fleming   alpha*(t) = 4 - 4 Phi(z(alpha / 4) / sqrt(t)): nearly nothing early
    pocock           alpha*(t) = alpha ln(1 + (e - 1) t): about the same at every look

The statistic over the looks is a Brownian motion at the times t (Armitage, McPherson and Rowe's
recursion, by Gauss-Legendre quadrature). The level of a look is then the nominal one of its
boundary, and is applied to the t statistic: exact at the first look, a close approximation later.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablate.config.typed import closest
from ablate.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["RULES", "alphas_at_looks", "look_of", "nominal_levels", "spent"]

RULES = ("obrien_fleming", "pocock")

_NODES = 96


def alphas_at_looks(
    alpha: float, looks: Sequence[int], *, comparisons: int = 1, rule: str = "obrien_fleming"
) -> list[float]:
    """The familywise level of each look.

    A family of j arms, each at level a_k / j at look k, must not err more often than alpha. So
    a_k = min over j up to `comparisons` of j times the nominal level that spends alpha / j: Holm's
    steps keep the rate, whichever arms are null.

    Args:
        alpha: familywise, two-sided, over all looks together.
        looks: seeds of each arm at each look, rising; the last is the planned maximum.
        comparisons: arms that are compared with a reference.
        rule: one of RULES.
    """
    _check(looks, rule)
    # j * nominal(alpha / j) is monotone in j, so the ends are enough.
    families = sorted({1, max(1, comparisons)})
    levels = [[j * x for x in nominal_levels(alpha / j, tuple(looks), rule)] for j in families]
    return [min(column) for column in zip(*levels, strict=True)]


def look_of(
    decide: Mapping[str, Any], seeds: int, before: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What an entry of the manifest's history says of the look that it leads to.

    `looks` holds the seeds of an arm at each look so far, `look` its number in the declared plan
    (None: it was not declared), `alpha` the familywise level to judge at, and `exploratory` why no
    level makes the result confirmatory (None: it is).

    Args:
        decide: the frozen rule.
        seeds: of each arm, at this look.
        before: the history so far.
    """
    looks = [*(before[-1].get("looks", []) if before else []), seeds]
    spending, look, alpha, reason = decide.get("spending"), None, decide["alpha"], None
    if spending and seeds in spending["looks"]:
        look = spending["looks"].index(seeds) + 1
        alpha = spending["alpha_at_look"][look - 1]
    elif spending:
        declared = ", ".join(map(str, spending["looks"]))
        reason = f"{seeds} seeds are none of the declared looks ({declared})"
    elif before:
        reason = "seeds were added without a declared alpha-spending plan"
    reason = next((e["exploratory"] for e in before if e.get("exploratory")), None) or reason
    return {"looks": looks, "look": look, "alpha": alpha, "exploratory": reason}


def spent(alpha: float, t: float, rule: str = "obrien_fleming") -> float:
    """The level that is spent until the fraction t of the seeds is in; alpha at t = 1."""
    from scipy import special

    if rule == "pocock":
        return alpha * math.log(1 + (math.e - 1) * t)
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(t)))  # alpha / 2 a side


@functools.lru_cache(maxsize=512)
def nominal_levels(alpha: float, looks: tuple[int, ...], rule: str) -> tuple[float, ...]:
    """Two-sided nominal level of each look of one comparison, such that all together spend alpha.

    A boundary over which nothing can be spent any more (rounding) has the level 0.
    """
    import numpy as np
    from scipy import special

    times = [look / looks[-1] for look in looks]
    levels, before, t_before = [], 0.0, 0.0
    # Of the motion where no boundary was crossed: places and the probability at each.
    place, mass = np.zeros(1), np.ones(1)
    for t in times:
        now, step = spent(alpha, t, rule), math.sqrt(t - t_before)
        edge = _boundary(now - before, place, mass, step, 40.0 * math.sqrt(t))
        levels.append(float(2 * special.ndtr(-edge / math.sqrt(t))))
        place, mass = _advance(edge, place, mass, step)
        before, t_before = now, t
    return tuple(levels)


def _boundary(
    aim: float, place: np.ndarray, mass: np.ndarray, step: float, furthest: float
) -> float:
    """The edge that the motion crosses at this look, on either side, with the probability `aim`."""
    from scipy import optimize, special

    def excess(edge: float) -> float:
        above, below = special.ndtr((place - edge) / step), special.ndtr((-edge - place) / step)
        return float((mass * (above + below)).sum()) - aim

    if excess(furthest) >= 0:
        return furthest
    return float(optimize.brentq(excess, 0.0, furthest, xtol=1e-12))  # pyright: ignore


def _advance(
    edge: float, place: np.ndarray, mass: np.ndarray, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """Places and masses after this look, inside the edges."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    z = (edge * nodes[:, None] - place[None, :]) / step
    density = (np.exp(-(z**2) / 2) / (math.sqrt(2 * math.pi) * step)) @ mass
    return edge * nodes, density * edge * weights


def _check(looks: Sequence[int], rule: str) -> None:
    field = "sweep.decide.spending"
    if rule not in RULES:
        known = "must be one of " + ", ".join(RULES)
        raise ConfigError(f"{field}.rule", rule, known, closest(rule, RULES, listed=True))
    rising = all(a < b for a, b in itertools.pairwise(looks))
    if not looks or looks[0] < 2 or not rising:
        raise ConfigError(
            f"{field}.looks",
            list(looks),
            "must be the seeds of each arm at each look, rising, from 2 on",
            "Write for example looks: [3, 6]",
        )
