"""The effects table: every arm against its reference, with simultaneous intervals and a verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from ablate.analysis.estimate import Fit, fit
from ablate.analysis.multiplicity import adjust
from ablate.analysis.rule import Rule
from ablate.analysis.verdict import Evidence, decide, seeds_that_decide

__all__ = ["COLUMNS", "effects"]

COLUMNS = [
    "arm",
    "reference",
    "seeds",
    "diverged",
    "mean",
    "difference",
    "low",
    "high",
    "p",
    "tost_p",
    "error",
    "wins",
    "pairs",
    "verdict",
    "note",
    "seeds_needed",
    "equivalent_low",
    "equivalent_high",
    "single_low",
    "single_high",
    "bootstrap_low",
    "bootstrap_high",
    "baseline_difference",
    "baseline_low",
    "baseline_high",
    "baseline_p",
]

_BOOTSTRAP_FROM = 10
"""Seeds; below it a bootstrap interval of a mean is too narrow to be shown."""


def effects(
    values: pd.DataFrame,
    references: Mapping[str, str | None],
    rule: Rule,
    *,
    baseline: str | None = None,
    edges: Collection[str] = (),
    withheld: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, Fit]:
    """One row an arm, in the order of `references`; the columns are COLUMNS.

    Args:
        values: one row a trial that ended, with columns arm, seed, value; a value that is not
            finite means that the trial diverged.
        references: the reference of each arm, None for the baseline.
        rule: the decision rule.
        baseline: the second column of differences is taken against it; None: the arm without a
            reference.
        edges: arms whose best learning rate lies at the edge of its bracket.
        withheld: arms that get no verdict, and why.
    """
    arms = list(references)
    if baseline is None:
        baseline = next((a for a, r in references.items() if r is None), None)
    arm = values["arm"].to_numpy(dtype=object)
    seed = values["seed"].to_numpy()
    value = values["value"].to_numpy(dtype=float)
    ok = np.isfinite(value)
    model = fit(arm[ok], seed[ok], value[ok])
    seeds = {a: len(set(seed[ok & (arm == a)].tolist())) for a in arms}
    diverged = {a: int((~ok & (arm == a)).sum()) for a in arms}

    pairs = [(a, r) for a, r in references.items() if r is not None]
    primary = _intervals(model, pairs, seeds, rule)
    ladder = any(r != baseline for _, r in pairs)
    second = (
        _intervals(model, [(a, baseline) for a, _ in pairs], seeds, rule)
        if ladder and baseline is not None
        else primary
    )
    rows = []
    for a, reference in references.items():
        row: dict[str, object] = {
            "arm": a,
            "reference": reference,
            "seeds": seeds[a],
            "diverged": diverged[a],
            "mean": float(value[ok & (arm == a)].mean()) if seeds[a] else np.nan,
        }
        if reference is None:
            note = f"diverged {diverged[a]}/{seeds[a] + diverged[a]}" if diverged[a] else ""
            rows.append(row | {"verdict": "baseline", "note": note})
            continue
        i = pairs.index((a, reference))
        own = {k: float(v[i]) for k, v in primary.items()}
        evidence = Evidence(
            difference=own["difference"],
            low=own["low"],
            high=own["high"],
            equivalent_low=own["equivalent_low"],
            equivalent_high=own["equivalent_high"],
            seeds=seeds[a],
            reference_seeds=seeds.get(reference, 0),
            diverged=diverged[a],
            reference_diverged=diverged.get(reference, 0),
            edge=a if a in edges else reference if reference in edges else None,
            withheld=(withheld or {}).get(a),
        )
        verdict, note = decide(evidence, rule)
        needed = None
        if verdict == "undecided" and not evidence.withheld and np.isfinite(own["low"]):
            needed = seeds_that_decide(
                own["difference"],
                model.sigma,
                rule,
                seeds=min(seeds[a], seeds[reference]),
                arms=len(model.arms),
                comparisons=int(np.isfinite(primary["low"]).sum()),
                critical=own["critical"],
                df=model.df,
                blocked=model.blocked,
            )
            said = (
                f"about {needed} seeds would decide"
                if needed
                else "no number of seeds up to 1000 would decide"
            )
            note = "; ".join(s for s in (note, said) if s)
        row |= {"verdict": verdict, "note": note, "seeds_needed": needed}
        row |= {k: own[k] for k in own if k != "critical"}
        row |= _ranks(arm, seed, value, a, reference, rule)
        row |= _bootstrap(arm, seed, value, a, reference, rule)
        row |= {f"baseline_{k}": float(second[k][i]) for k in ("difference", "low", "high", "p")}
        rows.append(row)
    table = pd.DataFrame({c: [row.get(c, np.nan) for row in rows] for c in COLUMNS})
    for column in ("wins", "pairs"):
        table[column] = pd.array([row.get(column) for row in rows], dtype="Int64")
    table["seeds_needed"] = pd.array([row.get("seeds_needed") for row in rows], dtype="Int64")
    return table, model


def _intervals(
    model: Fit, pairs: list[tuple[str, str]], seeds: Mapping[str, int], rule: Rule
) -> dict[str, np.ndarray]:
    """Simultaneous over the pairs; NaN where a pair cannot be estimated or has an arm with a
    single seed.
    """
    names = (
        "low",
        "high",
        "p",
        "tost_p",
        "error",
        "critical",
        "equivalent_low",
        "equivalent_high",
        "single_low",
        "single_high",
    )
    out = {k: np.full(len(pairs), np.nan) for k in names}
    if not pairs:
        return out | {"difference": np.empty(0)}
    c = model.contrasts(pairs)
    enough = np.array([min(seeds.get(a, 0), seeds.get(b, 0)) >= 2 for a, b in pairs])
    use = np.flatnonzero(enough & np.isfinite(c.estimate) & np.isfinite(c.error))
    if model.df > 0 and len(use):
        d, error = c.estimate[use], c.error[use]
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(d == 0, 0.0, d / error)
        correlation = c.correlation[np.ix_(use, use)]
        critical, p = adjust(t, correlation, model.df, alpha=rule.alpha, correction=rule.correction)
        widths = {
            "": critical,
            "equivalent_": stats.t.isf(rule.alpha, model.df),
            "single_": stats.t.isf(rule.alpha / 2, model.df),
        }
        for name, width in widths.items():
            out[name + "low"][use] = d - width * error
            out[name + "high"][use] = d + width * error
        out["p"][use], out["critical"][use], out["error"][use] = p, critical, error
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = (rule.equivalence - np.abs(d)) / error  # the nearer of the two margins
        out["tost_p"][use] = stats.t.sf(np.nan_to_num(inside, nan=-np.inf), model.df)
    return out | {"difference": c.estimate}


def _ranks(
    arm: np.ndarray, seed: np.ndarray, value: np.ndarray, a: str, reference: str, rule: Rule
) -> dict[str, int]:
    """Seeds on which the arm beats its reference, of those that both ran; diverged is the worst
    rank, and no win against another that diverged.
    """
    worst = np.where(np.isfinite(value), value if rule.lower_is_better else -value, np.inf)
    mine = dict(zip(seed[arm == a].tolist(), worst[arm == a].tolist(), strict=True))
    other = dict(
        zip(seed[arm == reference].tolist(), worst[arm == reference].tolist(), strict=True)
    )
    both = mine.keys() & other.keys()
    return {"wins": sum(mine[s] < other[s] for s in both), "pairs": len(both)}


def _bootstrap(
    arm: np.ndarray, seed: np.ndarray, value: np.ndarray, a: str, reference: str, rule: Rule
) -> dict[str, float]:
    """BCa interval of the mean difference over seeds that both have; the draws are the same at
    every run. The level is expanded as Student's t asks for so few (Hesterberg 2015, 2.4): by
    itself the bootstrap of a mean of ten covers 91 instead of 95 %.
    """
    mine = {s: v for s, v in zip(seed[arm == a], value[arm == a], strict=True) if np.isfinite(v)}
    other = {
        s: v
        for s, v in zip(seed[arm == reference], value[arm == reference], strict=True)
        if np.isfinite(v)
    }
    common = sorted(mine.keys() & other.keys())
    if len(common) < _BOOTSTRAP_FROM:
        return {}
    d = np.array([mine[s] - other[s] for s in common])
    if np.ptp(d) == 0:
        return {"bootstrap_low": float(d[0]), "bootstrap_high": float(d[0])}
    n = len(d)
    wide = np.sqrt(n / (n - 1)) * stats.t.isf(rule.alpha / 2, n - 1)
    interval = stats.bootstrap(
        (d,),
        np.mean,
        n_resamples=9999,
        confidence_level=1 - 2 * stats.norm.sf(wide),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return {"bootstrap_low": float(interval.low), "bootstrap_high": float(interval.high)}
