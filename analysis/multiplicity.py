"""Several arms at once: critical values and adjusted p-values of t statistics that share one
variance.

`dunnett`    single-step on the exact distribution of max |t| for the correlations at hand
             (Dunnett's test where all arms share one reference; for a ladder the same with the
             ladder's correlations)
`holm`       step-down on the pooled t; the interval of rank r is taken at the level at which Holm
             tests rank r, so that it excludes 0 exactly where Holm rejects
`bonferroni` and `none` for comparison
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import special, stats
from scipy.optimize import brentq

from ablate.errors import AblateError

__all__ = ["CORRECTIONS", "adjust", "max_t_quantile", "max_t_tail"]

CORRECTIONS = ("dunnett", "holm", "bonferroni", "none")

_POINTS = 2**15


def adjust(
    t: np.ndarray, correlation: np.ndarray, df: int, *, alpha: float, correction: str
) -> tuple[np.ndarray, np.ndarray]:
    """Critical values and adjusted p-values of |t|, in the order given.

    Args:
        t: the family's statistics, all finite or infinite, none NaN.
        correlation: of their errors.
        df: residual degrees of freedom, at least 1.
        alpha: familywise error rate.
        correction: one of CORRECTIONS.
    """
    if correction not in CORRECTIONS:
        raise AblateError(
            f"decide.correction={correction}: there is no such correction. "
            f"Known: {', '.join(CORRECTIONS)}."
        )
    t = np.abs(t)
    k = len(t)
    if k == 0:
        return np.empty(0), np.empty(0)
    single = 2 * stats.t.sf(t, df)
    if correction == "dunnett":
        quantile = max_t_quantile(correlation, df, alpha)
        p = np.array([max_t_tail(x, correlation, df) for x in t])
        # The exact value lies between the single and the Bonferroni one; integration errors may
        # not leave that.
        return np.full(k, quantile), np.clip(p, single, np.minimum(1, k * single))
    if correction == "holm":
        order = np.argsort(single, kind="stable")
        levels = alpha / (k - np.arange(k))
        failed = np.flatnonzero(single[order] > levels)
        if len(failed):
            levels[failed[0] :] = levels[failed[0]]
        critical = np.empty(k)
        critical[order] = stats.t.isf(levels / 2, df)
        p = np.empty(k)
        p[order] = np.minimum(1, np.maximum.accumulate(single[order] * (k - np.arange(k))))
        return critical, p
    if correction == "bonferroni":
        return np.full(k, stats.t.isf(alpha / 2 / k, df)), np.minimum(1, k * single)
    return np.full(k, stats.t.isf(alpha / 2, df)), single


def max_t_quantile(correlation: np.ndarray, df: int, alpha: float) -> float:
    """The q with P(max |T| > q) = alpha, T multivariate t with this correlation and df."""
    return _quantile(*_key(correlation), int(df), float(alpha))


def max_t_tail(t: float, correlation: np.ndarray, df: int) -> float:
    """P(max |T| > t)."""
    if not np.isfinite(t):
        return 0.0
    return _tail(float(t), _largest(*_key(correlation)), int(df))


def _key(correlation: np.ndarray) -> tuple[bytes, int]:
    # The order of the arms does not matter to the maximum, rounding must not matter to the cache.
    return np.round(correlation, 9).tobytes(), len(correlation)


@lru_cache(maxsize=256)
def _quantile(key: bytes, k: int, df: int, alpha: float) -> float:
    low, high = stats.t.isf(alpha / 2, df), stats.t.isf(alpha / 2 / k, df)
    if k == 1:
        return float(low)
    m = _largest(key, k)
    below, above = low * 0.98, high * 1.02
    return float(
        np.clip(brentq(lambda q: _tail(q, m, df) - alpha, below, above, xtol=1e-7), low, high)
    )


def _tail(q: float, m: np.ndarray, df: int) -> float:
    """The denominator of t is integrated in closed form: P(m / sqrt(W / df) > q), W chi-squared."""
    if q <= 0:
        return 1.0
    return float(special.gammainc(df / 2, df / 2 * (m / q) ** 2).mean())


@lru_cache(maxsize=64)
def _largest(key: bytes, k: int) -> np.ndarray:
    """Max |Z| at a fixed Sobol sequence's points, Z normal with the correlation: the same at every
    run.

    Sorted and averaged sixteen by sixteen: the tail is smooth in it, and sixteen times cheaper to
    add up.
    """
    values, vectors = np.linalg.eigh(np.frombuffer(key).reshape(k, k))
    keep = values > 1e-9
    root = (vectors * np.sqrt(np.clip(values, 0, None)))[:, keep]
    sobol = stats.qmc.Sobol(int(keep.sum()), scramble=True, rng=np.random.default_rng(0))
    uniform = np.clip(sobol.random(_POINTS), 1e-12, 1 - 1e-12)
    largest = np.abs(special.ndtri(uniform) @ root.T).max(axis=1)
    return np.sort(largest).reshape(-1, 16).mean(axis=1)
