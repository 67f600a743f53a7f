"""How steadily each arm trained: spikes, damage, divergence, and the largest attention logit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from ablate.spikes import ALERTS, Event, compare, detect, latest, score

__all__ = ["COLUMNS", "curve_slices", "events_of", "stability"]

COLUMNS = [
    "arm", "trials", "diverged", "rate", "rate_low", "rate_high", "spikes", "data", "own",
    "responses", "skipped", "spike_score", "grad_score", "damage", "attention_logit_max",
]  # fmt: skip
_FIELDS = [f.name for f in dataclasses.fields(Event)]
_WHOLE = {f.name for f in dataclasses.fields(Event) if str(f.type).startswith("int")}
_WINDOW, _SIGMAS = 1000, 7.0
_SEARCH_UP_TO = 200_000
"""Rows of all curves together; longer ones are searched while they are trained, and compared by
`ablate spikes`."""


def stability(
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    found: Mapping[str, list[Event]],
    events: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row an arm.

    Args:
        trials: those that count, of `Frames`.
        curves: their curves, with train/loss.
        found: of `events_of`.
        events: all that were recorded, of `Frames`.

    Returns:
        `rate` is the share of trials that diverged, with its exact 95 % interval; `spikes` alarms a
        trial, of which `data` had a cause in the data and `own` in the arm (not a number where no
        alarm has any cause: nothing was compared, or the runs are not paired); `responses` what a
        trial did about its spikes, in actions (not a number where no trial did anything);
        `skipped` the steps of a trial that updated nothing, because a gradient overflowed in
        float16 or a response said so (the same); `spike_score` and `grad_score` OLMo
        2's scores (per cent; not a number under 1,000 steps); `damage` nats x steps per 1,000
        steps; `attention_logit_max` the largest of any trial.
    """
    places = dict(curve_slices(curves))
    loss = spike_scores(curves, places, "train/loss")
    norm = spike_scores(curves, places, "train/grad_norm")
    damage = {}
    for id, events_ in found.items():
        if id in places:
            ends = curves["step"].to_numpy()[places[id]][[0, -1]]
            damage[id] = float(score(ends, [0.0, 0.0], events_)["damage"] or 0.0)
    known, without_update = bool(found), skipped_steps(events)
    done = responses(events)
    alarms = [e for own in found.values() for e in own if e.is_alert]
    split = known and (not alarms or any(e.cause for e in alarms))
    logit = _largest_logit(trials, curves)
    out = []
    for arm, group in trials.groupby("arm", sort=False):
        n, diverged = len(group), int((group["status"] == "diverged").sum())
        low, high = _clopper_pearson(diverged, n)
        own = [e for i in group["id"] for e in found.get(i, []) if e.is_alert]
        mean = lambda of, ids=group["id"]: _mean([of[i] for i in ids if i in of])  # noqa: E731
        causes = [e.cause for e in own]
        out.append(
            {
                "arm": arm,
                "trials": n,
                "diverged": diverged,
                "rate": diverged / n,
                "rate_low": float(np.nan_to_num(low)),
                "rate_high": float(high),
                "spikes": len(own) / n if known else np.nan,
                "data": causes.count("data") / n if split else np.nan,
                "own": causes.count("arm") / n if split else np.nan,
                "responses": _a_trial(done, group["id"]),
                "skipped": _a_trial(without_update, group["id"]),
                "spike_score": mean(loss),
                "grad_score": mean(norm),
                "damage": mean(damage) if known else np.nan,
                "attention_logit_max": logit.get(arm, np.nan),
            }
        )
    return pd.DataFrame(out, columns=COLUMNS)


def _a_trial(counts: Mapping[str, int], ids: Collection[str]) -> float:
    """The mean over trials; not a number where no trial of the study has any."""
    return sum(counts.get(i, 0) for i in ids) / len(ids) if counts else np.nan


def responses(events: pd.DataFrame | None) -> dict[str, int]:
    """Of each trial that has any: how often it did something about a spike."""
    if events is None or not len(events):
        return {}
    return events.loc[events["kind"] == "response", "id"].value_counts().to_dict()


def skipped_steps(events: pd.DataFrame | None) -> dict[str, int]:
    """Of each trial that has any: steps whose update was not applied."""
    if events is None or not len(events):
        return {}
    skipped = events["kind"] == "overflow"
    if "what" in events:
        skipped |= (events["kind"] == "response") & (events["what"] == "skip_step")
    return events[skipped].groupby("id")["step"].nunique().to_dict()


def spike_scores(
    curves: pd.DataFrame, places: Mapping[str, slice], column: str
) -> dict[str, float]:
    """OLMo 2's score of each trial: per cent of values at least 7 standard deviations from the mean
    of the 1,000 before (`ablate.spikes.references`; here of all trials at once).
    """
    if column not in curves or not len(curves):
        return {}
    value = curves[column].to_numpy(dtype=float)
    return {
        id: _spike_score(value[rows])
        for id, rows in places.items()
        if np.isfinite(value[rows]).sum() > _WINDOW
    }


def _spike_score(x: np.ndarray) -> float:
    known = np.isfinite(x)
    # Sums of squares of small numbers keep their digits; a mean follows a curve that ends high.
    x = x - np.median(x[known])
    sums = lambda of: np.concatenate([[0.0], np.cumsum(of)])  # noqa: E731
    first, second = sums(np.where(known, x, 0.0)), sums(np.where(known, x * x, 0.0))
    whole = sums(known)
    before = lambda of: of[_WINDOW:-1] - of[: -_WINDOW - 1]  # noqa: E731
    mean = before(first) / _WINDOW
    variance = before(second) / _WINDOW - mean**2
    with np.errstate(invalid="ignore"):
        std = np.sqrt(np.maximum(variance, 0.0))
        flagged = np.abs(x[_WINDOW:] - mean) >= _SIGMAS * std
        flagged &= variance > 1e-12 * second[_WINDOW:-1] / _WINDOW  # else it is rounding
    flagged &= before(whole) == _WINDOW
    return 100.0 * float(flagged.sum()) / float(known.sum())


def events_of(curves: pd.DataFrame, events: pd.DataFrame) -> dict[str, list[Event]]:
    """Events by trial, as recorded, each with its cause; empty where nobody looked, which is not
    the same as no spikes.

    In a study of moderate length what was not recorded is searched for, and trials of one seed,
    which saw the same batches, are compared: what every arm shows is the data's.
    """
    kinds = (*ALERTS, "blip")
    found: dict[str, list[Event]] = {}
    if len(events) and "kind" in events:
        for row in events[events["kind"].isin(kinds)].to_dict("records"):
            found.setdefault(row["id"], []).append(_event(row))
        found = {i: latest(e) for i, e in found.items()}
    if "train/loss" not in curves or not 0 < len(curves) <= _SEARCH_UP_TO:
        return found
    step, loss = curves["step"].to_numpy(), curves["train/loss"].to_numpy(dtype=float)
    seeds = curves["seed"].to_numpy() if "seed" in curves else np.zeros(len(curves), dtype=int)
    places = dict(curve_slices(curves))
    seen = _watched(events)  # where the detector found nothing, there is nothing to search for
    known = found or {
        i: [] if i in seen else detect(step[rows], loss[rows]) for i, rows in places.items()
    }
    known = {i: known.get(i, []) for i in places}
    groups: dict[int, dict[str, slice]] = {}
    for id, rows in places.items():
        groups.setdefault(int(seeds[rows.start]), {})[id] = rows
    for group in groups.values():
        if len(group) >= 2:
            runs = {i: (step[r], loss[r]) for i, r in group.items()}
            known |= compare(runs, {i: known[i] for i in group}).events
    return known


def _watched(events: pd.DataFrame) -> set[str]:
    """Trials of ours, which the detector looked at while they ran."""
    if not len(events) or "kind" not in events:
        return set()
    return set(events.loc[events["kind"].isin(["start", "resume"]), "id"])


def curve_slices(curves: pd.DataFrame, ids: Collection[str] | None = None) -> Iterator:
    """(id, rows) of each trial; the rows of a trial lie together."""
    if not len(curves):
        return
    column = curves["id"].astype("category")
    codes = column.cat.codes.to_numpy()
    start = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    for first, end in zip(start, [*start[1:], len(codes)], strict=True):
        id = str(column.cat.categories[codes[first]])
        if ids is None or id in ids:
            yield id, slice(int(first), int(end))


def _clopper_pearson(count: int, of: int) -> tuple[float, float]:
    low = float(stats.beta.ppf(0.025, count, of - count + 1)) if count else 0.0
    return low, float(stats.beta.ppf(0.975, count + 1, of - count)) if count < of else 1.0


def _event(row: dict) -> Event:
    given = {k: row[k] for k in _FIELDS if k in row and not _missing(row[k])}
    given.setdefault("start", int(row["step"]))
    given.setdefault("start_row", int(given["start"]))
    if isinstance(given.get("corroboration"), str):
        given["corroboration"] = json.loads(given["corroboration"])
    for name in _WHOLE & given.keys():  # in a frame with gaps they are floats
        given[name] = int(given[name])
    return Event(**given)


def _missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _largest_logit(trials: pd.DataFrame, curves: pd.DataFrame) -> dict[str, float]:
    """Of each arm: from the summaries, else from the curves."""
    name = "model/attention_logit_max"
    if name in trials and trials[name].notna().any():
        return trials.groupby("arm")[name].max().to_dict()
    columns = [c for c in curves if str(c).startswith(name)]
    if not columns:
        return {}
    largest = curves[columns].max(axis=1).groupby(curves["arm"].astype(str)).max()
    return largest.to_dict()


def _mean(values: list[float]) -> float:
    kept = [v for v in values if np.isfinite(v)]
    return float(np.mean(kept)) if kept else np.nan
