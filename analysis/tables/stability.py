"""How steadily each arm trained: spikes, damage, divergence, and the largest attention logit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from ablate.spikes import ALERTS, Event, compare, detect, latest, score

__all__ = ["COLUMNS", "curve_slices", "events_of", "stability"]

COLUMNS = [
    "arm", "trials", "diverged", "rate", "rate_low", "rate_high", "spikes", "data", "own",
    "spike_score", "grad_score", "damage", "attention_logit_max",
]  # fmt: skip
_FIELDS = {f.name: f for f in dataclasses.fields(Event)}
_DETECT_UP_TO = 100_000
"""Rows of all curves together; longer records are searched while they are trained, or by `ablate
spikes`."""


def stability(trials: pd.DataFrame, curves: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """One row an arm.

    Args:
        trials: those that count, of `Frames`.
        curves: their curves, with train/loss.
        events: of `Frames`; where there are none, a small study is searched here.

    Returns:
        `rate` is the share of trials that diverged, with its exact 95 % interval; `spikes` alarms a
        trial, of which `data` had a cause in the data and `own` in the arm; `spike_score` and
        `grad_score` OLMo 2's scores (per cent; not a number under 1,000 steps); `damage` nats x
        steps per 1,000 steps; `attention_logit_max` the largest of any trial.
    """
    found = events_of(curves, events)
    scored: dict[str, dict[str, float]] = {}
    for id, rows in curve_slices(curves):
        loss = curves["train/loss"].to_numpy()[rows] if "train/loss" in curves else []
        if not len(loss):
            continue
        norms = curves["train/grad_norm"].to_numpy()[rows] if "train/grad_norm" in curves else None
        made = score(curves["step"].to_numpy()[rows], loss, found.get(id, []), norms)
        scored[id] = {k: np.nan if v is None else float(v) for k, v in made.items()}
    known = bool(found)
    logit = _largest_logit(trials, curves)
    out = []
    for arm, group in trials.groupby("arm", sort=False):
        n, diverged = len(group), int((group["status"] == "diverged").sum())
        low, high = proportion_confint(diverged, n, method="beta") if n else (np.nan, np.nan)
        own = [e for i in group["id"] for e in found.get(i, []) if e.is_alert]
        mean = lambda key, ids=group["id"]: _mean([scored[i][key] for i in ids if i in scored])  # noqa: E731
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
                "data": causes.count("data") / n if known else np.nan,
                "own": causes.count("arm") / n if known else np.nan,
                "spike_score": mean("olmo2_score"),
                "grad_score": mean("olmo2_score_grad_norm"),
                "damage": mean("damage") if known else np.nan,
                "attention_logit_max": logit.get(arm, np.nan),
            }
        )
    return pd.DataFrame(out, columns=COLUMNS)


def events_of(curves: pd.DataFrame, events: pd.DataFrame) -> dict[str, list[Event]]:
    """Events by trial, as recorded; searched for here where nothing was recorded and it is quick.

    Empty where nobody looked: that is not the same as no spikes.
    """
    kinds = (*ALERTS, "blip")
    if len(events) and "kind" in events and events["kind"].isin(kinds).any():
        rows = events[events["kind"].isin(kinds)]
        found: dict[str, list[Event]] = {str(i): [] for i in events["id"].unique()}
        for row in rows.to_dict("records"):
            found.setdefault(row["id"], []).append(_event(row))
        return _caused({i: latest(e) for i, e in found.items()}, curves)
    if "train/loss" not in curves or not 0 < len(curves) <= _DETECT_UP_TO:
        return {}
    step, loss = curves["step"].to_numpy(), curves["train/loss"].to_numpy(dtype=float)
    found = {i: detect(step[rows], loss[rows]) for i, rows in curve_slices(curves)}
    return _caused(found, curves)


def _caused(found: dict[str, list[Event]], curves: pd.DataFrame) -> dict[str, list[Event]]:
    """With data or arm as the cause, where trials of one seed saw the same batches."""
    if not {"train/loss", "seed"} <= set(curves) or not 0 < len(curves) <= _DETECT_UP_TO:
        return found
    step, loss = curves["step"].to_numpy(), curves["train/loss"].to_numpy(dtype=float)
    groups: dict[object, dict[str, slice]] = {}
    for id, rows in curve_slices(curves):
        groups.setdefault(curves["seed"].iloc[rows.start], {})[id] = rows
    for group in groups.values():
        runs = {id: (step[rows], loss[rows]) for id, rows in group.items()}
        if len(runs) > 1:
            found |= compare(runs, {id: found.get(id, []) for id in runs}).events
    return found


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


def _event(row: dict) -> Event:
    given = {k: row[k] for k in _FIELDS if k in row and not _missing(row[k])}
    given.setdefault("start", int(row["step"]))
    given.setdefault("start_row", int(given["start"]))
    if isinstance(given.get("corroboration"), str):
        given["corroboration"] = json.loads(given["corroboration"])
    for name in ("start", "start_row", "detect", "peak", "end", "recovery_steps"):
        if name in given:
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
