"""What of a judgement goes into each table: material in, frame out; empty where a table has nothing
to say.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from ablate.analysis.effects import effects
from ablate.analysis.material import Material
from ablate.analysis.tables import attribution as ladders
from ablate.analysis.tables import costs as money
from ablate.analysis.tables import learning_rates as rates
from ablate.analysis.tables import shared, tail
from ablate.analysis.tables import stability as steady
from ablate.analysis.tables.claims import judge_claims
from ablate.analysis.tables.equivalents import FEWEST
from ablate.analysis.tables.equivalents import equivalents as read_off
from ablate.analysis.tables.factorial import factor_effects
from ablate.analysis.tables.scaling import fit_scaling, gaps, scaling_points

FACTORIALS = ("factorial", "fractional", "grid", "random")
GROWING = ("size", "scale", "tokens", "steps", "budget", "depth", "width")
"""Factors that a scaling law is fitted over."""


def claims(m: Material) -> pd.DataFrame:
    stated = m.j.manifest.get("claim") or []
    if isinstance(stated, dict):  # of an ablate that carried claims and did not read them
        return pd.DataFrame()
    return judge_claims(m.j.frames.trials, stated, m.j.rule)


def equivalents(m: Material) -> pd.DataFrame:
    """Off the curve of the metric that decides; where it was measured at the end only, off the
    training loss, and by the differences in it.
    """
    rule, metric, table = m.j.rule, m.j.rule.metric, _without_survivors(m.effects)
    curve = m.curves.get(metric)
    if curve is None or curve["step"].nunique() < FEWEST:
        metric, curve = "train/loss", m.curves.get("train/loss")
        if curve is None or metric not in m.trials:
            return pd.DataFrame()
        values = m.trials[["arm", "seed"]].assign(
            value=m.trials[metric].where(m.trials["status"] == "done")
        )
        references = dict(zip(table["arm"], table["reference"], strict=True))
        given = {a: r if isinstance(r, str) else None for a, r in references.items()}
        rule = dataclasses.replace(rule, metric=metric)
        costs_of = table[["arm", *(c for c in ("flops", "seconds") if c in table)]]
        table = _without_survivors(effects(values, given, rule)[0]).merge(costs_of, on="arm")
    return read_off(table, curve, lower_is_better=rule.lower_is_better).assign(metric=metric)


def _without_survivors(table: pd.DataFrame) -> pd.DataFrame:
    """No mean for an arm that lost a seed, and no difference to or from it: these tables have no
    place to say that it is the survivors' alone.
    """
    lost = set(table.loc[table["diverged"] > 0, "arm"])
    own = table["arm"].isin(lost)
    either = own | table["reference"].isin(lost)
    out = table.copy()
    out.loc[own, "mean"] = np.nan
    out.loc[either, ["difference", "low", "high"]] = np.nan
    return out


def u_curves(m: Material) -> pd.DataFrame:
    made = rates.u_curves(m.j.ended, m.j.rule.metric)
    return made[made.groupby("arm")["lr"].transform("nunique") > 1]


def sensitivity(m: Material) -> pd.DataFrame:
    metric = m.j.rule.metric
    return rates.sensitivity(
        m.j.ended, metric, cap=_at_start(m), lower_is_better=m.j.rule.lower_is_better
    )


def _at_start(m: Material) -> float | None:
    """The metric at initialisation, by the first training loss; None where that says nothing."""
    metric, curves, loss = m.j.rule.metric, m.j.frames.curves, m.j.ended.get("val/loss")
    if "train/loss" not in curves or loss is None or not metric.startswith("val/"):
        return None
    first = curves.loc[curves["step"] <= 1, "train/loss"].to_numpy(dtype=float)
    ratio = float((m.j.ended[metric] / loss).median())  # bits per byte and nats per token
    known = metric in ("val/loss", "val/bpb") and np.isfinite(first).any() and np.isfinite(ratio)
    return float(np.nanmean(first)) * ratio if known else None


def factors(m: Material) -> pd.DataFrame:
    if m.design not in FACTORIALS or m.j.baseline is None:
        return pd.DataFrame()
    return factor_effects(m.j.values, m.levels, m.j.baseline, alpha=m.j.rule.alpha)


def attribution(m: Material) -> pd.DataFrame:
    if m.info.get("kind") != "ladder" or not m.info.get("orders"):
        return pd.DataFrame()
    orders = m.info["orders"]
    steps = m.info.get("steps") or [order[1:] for order in orders]
    drawn = m.info.get("draw_seed") is not None
    return ladders.attribution(m.j.fit, orders, steps, alpha=m.j.rule.alpha, drawn=drawn)


def costs(m: Material) -> pd.DataFrame:
    return money.costs(_without_survivors(m.effects), m.trials, m.j.baseline)


def pareto(m: Material) -> pd.DataFrame:
    return money.pareto(costs(m), lower_is_better=m.j.rule.lower_is_better)


def sized(m: Material) -> tuple[pd.DataFrame, str]:
    """What a scaling law is fitted to, and over what (`scaling_points`); empty without sizes."""
    factor = next((f for f in m.j.manifest.get("factors") or {} if f in GROWING), None)
    if factor is None or m.j.rule.metric not in m.trials:
        return pd.DataFrame(), ""
    done = m.trials[m.trials["status"] == "done"]
    return scaling_points(done, m.j.rule.metric, m.levels, factor)


def scaling(m: Material) -> pd.DataFrame:
    points, over = sized(m)
    if not len(points):
        return points
    table, fit = fit_scaling(points)
    if fit is None:
        return table
    own = points.loc[points["arm"] == m.j.baseline, "variant"]
    reference = own.iloc[0] if len(own) else fit.variants[0]
    far = float(points["x"].max()) * 10
    gap = gaps(fit, reference, [far], alpha=m.j.rule.alpha).set_index("variant")
    return table.assign(
        over=over,
        far=far,
        gap=table["variant"].map(gap["gap"]),
        gap_low=table["variant"].map(gap["low"]),
        gap_high=table["variant"].map(gap["high"]),
    )


def stability(m: Material) -> pd.DataFrame:
    return steady.stability(m.trials, m.steps, m.events, m.j.frames.events)


def residuals(m: Material) -> pd.DataFrame:
    return shared.residuals(m.steps, m.trials)


def tail_noise(m: Material) -> pd.DataFrame:
    return tail.tail_noise(m.steps, m.j.rule.metric)
