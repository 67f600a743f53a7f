"""In what studies differ: what forbids to read their effects as one, and what has to be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ablate.analysis.comparable import changes_result, device_kind
from ablate.analysis.judgement import Judgement

__all__ = ["COLUMNS", "differences", "same_trials"]

COLUMNS = ["field", "weight"]
"""Then a column a study. `weight`: "refused" where effects may not be pooled over a difference in
it, "flagged" where they may."""
_UNSET = "not set"


def differences(judged: Sequence[Judgement]) -> pd.DataFrame:
    """One row a field in which not all studies are alike.

    Refused: the metric, and of the baselines whatever can change a result: schedule, budget,
    precision, model, data, evaluation set. Flagged: the rule, code, torch, device and seeds, which
    are the same within each study, and of which an effect should not depend.
    """
    rows = []
    for weight, read in (("refused", _condition), ("flagged", _circumstance)):
        each = [read(j) for j in judged]
        for field in dict.fromkeys(name for own in each for name in own):
            values = [own.get(field, _UNSET) for own in each]
            if len(set(values)) > 1:
                rows.append([field, weight, *values])
    return pd.DataFrame(rows, columns=[*COLUMNS, *(j.study for j in judged)])


def same_trials(judged: Sequence[Judgement], arms: Mapping[str, str]) -> str:
    """Why the effects of these arms (study -> arm) are no evidence beside each other: some of their
    trials, or their references', are one and the same. Empty where none is.
    """
    seen: dict[str, str] = {}
    for j in judged:
        if j.study not in arms:
            continue
        row = j.table[j.table["arm"] == arms[j.study]].iloc[0]
        trials = j.frames.trials
        own = trials[trials["arm"].isin([row["arm"], row["reference"]])
                     & trials["id"].isin(j.chosen)]  # fmt: skip
        for mark in own["fingerprint"].dropna() if "fingerprint" in own else ():
            if seen.setdefault(str(mark), j.study) != j.study:
                return f"{seen[str(mark)]} and {j.study} hold the same trials, not two samples"
    return ""


def _condition(j: Judgement) -> dict[str, str]:
    own = _baseline_trial(j)
    config = j.frames.configs.get((j.study, own.get("id", "")), {})
    bracket = {"optim.lr"} if (j.lrs["rates"] > 1).any() else set()
    kept = {
        name: _text(value)
        for name, value in config.items()
        if changes_result(name) and name != "seed" and name not in bracket
    }
    recorded = {"data_fingerprint": _text(own.get("data_fingerprint"))}
    budget = {} if config else {"steps": _text(own.get("steps"))}  # from elsewhere: all there is
    return {"metric": j.rule.metric, **kept, **budget, **recorded}


def _circumstance(j: Judgement) -> dict[str, str]:
    own, code = _baseline_trial(j), j.manifest.get("code") or {}
    rule = j.rule
    return {
        "decision rule": f"smallest effect {rule.smallest_effect:g}, alpha {rule.alpha:g}, "
        f"{rule.correction}",
        "seeds": ", ".join(map(str, sorted(j.frames.trials["seed"].unique()))),
        "exploratory": "; ".join(j.exploratory) or "no",
        "version": _text(code.get("version")),
        "commit": _text(code.get("commit")),
        "torch": _text(own.get("torch")),
        "device": device_kind(str(own["device"])) if own.get("device") else _UNSET,
    }


def _baseline_trial(j: Judgement) -> dict[str, Any]:
    trials = j.frames.trials
    own = trials[(trials["arm"] == j.baseline) & trials["id"].isin(j.chosen)]
    rows = own.head(1).to_dict("records")
    return {str(k): v for k, v in rows[0].items()} if rows else {}


def _text(value: Any) -> str:
    if value is None or value != value:
        return _UNSET
    return str(value).lower() if isinstance(value, bool) else str(value)
