"""Loss over size or tokens: L = E + A x^-b for each variant, E shared, and the gap further out.

With a floor of its own for each variant three or four sizes fix nothing; shared, the floor is
pinned by all points together. Intervals come from the linearised fit and hold if the form does:
they say nothing of what happens where the form breaks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats
from scipy.optimize import least_squares

__all__ = ["COLUMNS", "POINTS", "fit_scaling", "gaps", "scaling_points"]

POINTS = ["variant", "x", "value", "seed", "arm"]
COLUMNS = ["variant", "floor", "amplitude", "scale", "exponent", "exponent_low", "exponent_high",
           "points", "sizes", "sigma", "df"]  # fmt: skip
_FEWEST = 3
"""Different sizes of each variant."""


def scaling_points(
    trials: pd.DataFrame, metric: str, levels: Mapping[str, Mapping[str, str]], factor: str
) -> tuple[pd.DataFrame, str]:
    """`variant, x, value, seed, arm` of every trial, and what x is: parameters, or tokens.

    Args:
        trials: those that count.
        metric: the column.
        levels: of each arm, factor -> label; a variant is all of them but `factor`.
        factor: the one that grows.
    """
    over = "parameters" if trials.groupby("arm")["parameters"].median().nunique() > 2 else "tokens"
    if factor in ("tokens", "steps", "budget") and "tokens" in trials:
        over = "tokens"
    rows = []
    for row in trials.to_dict("records"):
        own = levels.get(row["arm"], {})
        rest = [v for f, v in own.items() if f != factor]
        rows.append((", ".join(rest) or "all", row.get(over), row.get(metric), row["seed"],
                     row["arm"]))  # fmt: skip
    points = pd.DataFrame(rows, columns=POINTS)
    return points[points["x"].notna() & points["value"].notna()], over


def fit_scaling(points: pd.DataFrame) -> tuple[pd.DataFrame, _Scaling | None]:
    """One row a variant, and the fit for `gaps`; empty with fewer than three sizes of each."""
    sizes = points.groupby("variant", sort=False)["x"].nunique()
    kept = points[points["variant"].map(sizes) >= _FEWEST]
    variants = list(dict.fromkeys(kept["variant"]))
    if not variants or len(kept) <= 2 * len(variants) + 1:
        return pd.DataFrame(columns=COLUMNS), None
    fit = _Scaling(kept, variants)
    half = stats.t.isf(0.025, fit.df) * np.sqrt(np.diag(fit.covariance))
    rows = []
    for i, name in enumerate(variants):
        own = kept[kept["variant"] == name]
        a, b = fit.theta[1 + 2 * i : 3 + 2 * i]
        low, high = float(b - half[2 + 2 * i]), float(b + half[2 + 2 * i])
        rows.append((name, fit.floor, float(np.exp(a)), fit.scale, float(b), low, high, len(own),
                     own["x"].nunique(), fit.sigma, fit.df))  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS), fit


def gaps(fit: _Scaling, reference: str, at: list[float], *, alpha: float = 0.05) -> pd.DataFrame:
    """`variant, x, gap, low, high`: each variant minus the reference, by the fit, at sizes `at`."""
    rows = []
    for name in fit.variants:
        for x in at if name != reference and reference in fit.variants else ():
            value, gradient = fit.predict(name, x)
            base, other = fit.predict(reference, x)
            g = gradient - other
            error = float(np.sqrt(max(g @ fit.covariance @ g, 0.0)))
            half = stats.t.isf(alpha / 2, fit.df) * error
            rows.append((name, x, value - base, value - base - half, value - base + half))
    return pd.DataFrame(rows, columns=["variant", "x", "gap", "low", "high"])


class _Scaling:
    """Least squares of E + exp(a_v - b_v log(x / x0)), E = least value times a share."""

    def __init__(self, points: pd.DataFrame, variants: list[str]) -> None:
        self.variants = variants
        x, y = points["x"].to_numpy(float), points["value"].to_numpy(float)
        self.scale = float(np.exp(np.log(x).mean()))
        u = np.log(x / self.scale)
        v = points["variant"].map({n: i for i, n in enumerate(variants)}).to_numpy()
        self.least = float(y.min())

        def residuals(theta: np.ndarray) -> np.ndarray:
            return theta[0] + np.exp(theta[1 + 2 * v] - theta[2 + 2 * v] * u) - y

        start = np.array([self.least * 0.8, *[np.log(max(self.least * 0.3, 1e-9)), 0.3]
                          * len(variants)])  # fmt: skip
        low = np.array([0.0, *[-np.inf, 0.0] * len(variants)])
        high = np.array([self.least, *[np.inf, 3.0] * len(variants)])
        found = least_squares(residuals, start, bounds=(low, high), x_scale="jac", xtol=1e-12)
        self.theta = found.x
        self.floor = float(found.x[0])
        self.df = len(y) - len(start)
        self.sigma = float(np.sqrt(2 * found.cost / self.df))
        self.covariance = np.linalg.pinv(found.jac.T @ found.jac) * self.sigma**2

    def predict(self, variant: str, x: float) -> tuple[float, np.ndarray]:
        """The value at x, and its gradient in the parameters."""
        i, u = self.variants.index(variant), float(np.log(x / self.scale))
        a, b = self.theta[1 + 2 * i : 3 + 2 * i]
        power = float(np.exp(a - b * u))
        gradient = np.zeros(len(self.theta))
        gradient[[0, 1 + 2 * i, 2 + 2 * i]] = 1.0, power, -u * power
        return self.floor + power, gradient
