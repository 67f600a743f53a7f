"""Statements from elsewhere, put to the test: what was claimed, what was measured, what follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.bracket import choose_by_seed, choose_lr
from ablate.analysis.claim_rule import UNTESTABLE, Measured, conclude, newcombe, student
from ablate.analysis.estimate import fit
from ablate.analysis.rule import Rule
from ablate.rundir import ENDED

__all__ = ["COLUMNS", "judge_claims"]

COLUMNS = [
    "statement", "source", "metric", "of", "against", "claimed", "measured", "estimate", "low",
    "high", "scale", "level", "verdict", "nearest", "nearest_verdict", "note", "seeds",
    "seeds_needed",
]  # fmt: skip


def judge_claims(
    trials: pd.DataFrame, claims: Sequence[Mapping[str, Any]], rule: Rule
) -> pd.DataFrame:
    """One row a claim, with the columns COLUMNS.

    Differences are taken seed by seed with the noise pooled over the arms of the study, as in the
    verdicts; of logarithms where the size is relative, so that `estimate`, `low` and `high` are
    ratios less 1. The level is the study's, divided by its number of claims (Bonferroni).

    Args:
        trials: of one study, as `Frames` has them.
        claims: as its manifest has them.
        rule: of the study; the learning rate is chosen by its metric.
    """
    level = rule.alpha / max(len(claims), 1)
    rows = [_row(_chosen(trials, claim, rule), claim, rule, level) for claim in claims]
    table = pd.DataFrame([{c: row.get(c) for c in COLUMNS} for row in rows], columns=COLUMNS)
    for column in ("estimate", "low", "high", "level"):
        table[column] = table[column].astype(float)
    for column in ("seeds", "seeds_needed"):
        table[column] = pd.array([row.get(column) for row in rows], dtype="Int64")
    return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Values:
    """A value for each arm and seed, NaN where it diverged; or why there is none."""

    table: pd.DataFrame
    problem: str = ""
    untestable: bool = False


def _row(values: _Values, claim: Mapping[str, Any], rule: Rule, level: float) -> dict[str, Any]:
    row = {k: claim.get(k) for k in ("statement", "source", "metric", "of", "against", "nearest")}
    tested, note = dict(claim), ""
    numbers = values.table["value"].to_numpy(dtype=float)
    share = claim.get("relative") is not None
    counted = claim["metric"] == "diverged" and len(numbers) > 0
    if share and (counted or (numbers[np.isfinite(numbers)] <= 0).any()):
        # A share of nothing: what is left of the claim is its direction.
        note = f"{claim['metric']} is 0 or less in some trial, so a share of it means nothing"
        if counted:
            note = "how often trials diverge has an interval as a difference, not as a ratio"
        if claim["direction"] != "no_worse":
            tested |= {"relative": None, "margin": None}
            direction = f"{claim['metric']} is {claim['direction']} at all"
            row["nearest"] = "; or rather: ".join(filter(None, (claim.get("nearest"), direction)))
        else:
            values = dataclasses.replace(values, problem=note, untestable=True)
    relative = tested.get("relative") is not None
    row |= {"claimed": _claimed(claim), "scale": "relative" if relative else "absolute"}
    row["level"] = 1 - level
    if values.problem:
        verdict = UNTESTABLE if values.untestable else "undecided"
        return row | {"verdict": verdict, "note": values.problem}
    measured = _measure(values.table, tested, rule, level, relative)
    lower = dataclasses.replace(rule, metric=claim["metric"]).lower_is_better
    verdict, said = conclude(measured, tested, lower_is_better=lower)
    needed = measured.seeds_needed(tested, verdict, lower_is_better=lower)
    idle = _nothing_happened(values.table, claim)
    if idle is not None:
        verdict, said, needed = "undecided", idle, None
    row |= {"seeds": measured.seeds, "seeds_needed": needed}
    if row["seeds_needed"] is not None:
        said = "; ".join(s for s in (said, f"about {row['seeds_needed']} seeds would decide") if s)
    elif verdict == "undecided" and idle is None and measured.fit and np.isfinite(measured.low):
        said = "; ".join(s for s in (said, "no number of seeds up to 1000 would decide") if s)
    back = np.expm1 if relative else float
    row |= {k: float(back(getattr(measured, k))) for k in ("estimate", "low", "high")}
    row["measured"] = _measured(row, relative)
    reason = "; ".join(s for s in (claim.get("untestable"), note) if s)
    if reason:
        return row | {
            "verdict": UNTESTABLE,
            "nearest_verdict": verdict,
            "note": "; ".join(s for s in (reason, said) if s),
        }
    return row | {"verdict": verdict, "note": said}


def _nothing_happened(table: pd.DataFrame, claim: Mapping[str, Any]) -> str | None:
    """Why an improvement in a measure of events could not have shown; None where it could.

    Where every value of both arms is the same, no trial had the event, or all had it alike: the
    noise is estimated as none, and the equivalence test holds of necessity. Bytes that agree are
    another matter: they are a result.
    """
    events = claim["metric"] == "diverged" or str(claim["metric"]).startswith("spikes/")
    if not events or claim["direction"] == "no_worse":
        return None
    pair = table["arm"].isin([claim["of"], claim["against"]])
    value = table.loc[pair, "value"].to_numpy(dtype=float)
    if not len(value) or not np.isfinite(value).all() or np.ptp(value) > 1e-12:
        return None
    return (
        f"every value of both arms is {value[0]:.3g}: nothing that the claim speaks of happened, "
        "or all of it did, so no difference could have shown"
    )


def _measure(
    table: pd.DataFrame, claim: Mapping[str, Any], rule: Rule, level: float, relative: bool
) -> Measured:
    of, against = claim["of"], claim["against"]
    if claim["metric"] == "diverged":
        return newcombe(*(table.loc[table["arm"] == a, "value"] for a in (of, against)), level)
    value = table["value"].to_numpy(dtype=float)
    ok = np.isfinite(value)
    arm, seed = table["arm"].to_numpy(dtype=object), table["seed"].to_numpy()
    y = np.log(value[ok]) if relative else value[ok]
    count = lambda a, these: int((these & (arm == a)).sum())  # noqa: E731
    return student(
        fit(arm[ok], seed[ok], y),
        of,
        against,
        level=level,
        seeds=(count(of, ok), count(against, ok)),
        diverged=(count(of, ~ok), count(against, ~ok)),
    )


def _chosen(trials: pd.DataFrame, claim: Mapping[str, Any], rule: Rule) -> _Values:
    """The trials that speak to the claim."""
    empty = pd.DataFrame({"arm": [], "seed": [], "value": []})
    metric, pair = claim["metric"], (claim["of"], claim["against"])
    one = claim.get("rates") if isinstance(claim.get("rates"), float) else None
    if one is not None:
        trials = pd.DataFrame(trials[np.isclose(trials["lr"].to_numpy(dtype=float), one)])
    both = trials[trials["arm"].isin(pair)]
    open_ = both[~both["status"].isin(ENDED)]
    if len(open_):
        said = f"{len(both) - len(open_)} of {len(both)} trials have ended"
        return _Values(table=empty, problem=said)
    ended = trials[trials["status"].isin(["done", "diverged"])].copy()
    if metric == "diverged":
        return _Values(table=ended.assign(value=(ended["status"] == "diverged").astype(float)))
    for name in (metric, rule.metric):
        ended[name] = pd.to_numeric(ended[name], errors="coerce") if name in ended else np.nan
    done = ended["status"] == "done"
    ended["ok"] = done & np.isfinite(ended[rule.metric])
    for arm in pair:
        own = ended[done & (ended["arm"] == arm)]
        if len(own) and not np.isfinite(own[metric]).any():
            return _Values(table=empty, problem=f"no trial of {arm} recorded {metric}",
                           untestable=True)  # fmt: skip
    lower = rule.lower_is_better
    if claim["rates"] == "all" or one is not None:
        ended["value"] = np.where(done, ended[metric], np.nan)
        mean = ended.groupby(["arm", "seed"], sort=False)["value"].agg(
            lambda v: v.mean(skipna=False)
        )
        return _Values(table=mean.reset_index())
    best = choose_lr(ended, rule.metric, lower_is_better=lower)
    edges = best.loc[best["edge"] & best["arm"].isin(pair), "arm"].tolist()
    if edges:
        said = f"best learning rate of {' and '.join(edges)} at the edge of its bracket: widen it"
        return _Values(table=empty, problem=said)
    judging = choose_by_seed(ended, rule.metric, lower_is_better=lower)
    chosen = ended.merge(judging.rename(columns={"lr": "best"}), on=["arm", "seed"])
    chosen = chosen[chosen["lr"].isna() | (chosen["lr"] == chosen["best"])]
    return _Values(table=chosen.assign(value=np.where(chosen["ok"], chosen[metric], np.nan)))


def _claimed(claim: Mapping[str, Any]) -> str:
    size = claim["relative"] if claim.get("relative") is not None else claim.get("absolute")
    if size is None:
        return str(claim["direction"])
    said = f"{100 * size:+.3g} %" if claim.get("relative") is not None else f"{size:+.3g}"
    return f"no worse than {said.lstrip('+')}" if claim["direction"] == "no_worse" else said


def _measured(row: Mapping[str, Any], relative: bool) -> str:
    show = (lambda v: f"{100 * v:+.3g} %") if relative else (lambda v: f"{v:+.3g}")
    if not np.isfinite(row["estimate"]):
        return ""
    if not np.isfinite(row["low"]):
        return show(row["estimate"])
    return f"{show(row['estimate'])} [{show(row['low'])}, {show(row['high'])}]"
