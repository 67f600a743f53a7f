"""From frames to verdicts: what may be compared, at which learning rate, by which rule, and how
sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ablate.analysis.bracket import choose_by_seed, choose_lr, chooser
from ablate.analysis.comparable import check_comparable, other_budgets, other_texts
from ablate.analysis.effects import effects
from ablate.analysis.estimate import Fit
from ablate.analysis.frames import Frames
from ablate.analysis.notes import moved, notes_of, with_missing
from ablate.analysis.rule import Rule, at_look, read_rule
from ablate.errors import StudyError
from ablate.rundir import ENDED

__all__ = ["Judgement", "damages", "judge", "plain"]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A study, judged. `table` has one row an arm: `effects.COLUMNS` and what the arms cost."""

    study: str
    manifest: Mapping[str, Any]
    frames: Frames
    rule: Rule
    baseline: str | None
    table: pd.DataFrame
    fit: Fit
    values: pd.DataFrame
    """`arm, seed, value` of what was compared; not a number where the trial diverged."""
    lrs: pd.DataFrame
    ended: pd.DataFrame
    """Every trial that ended, also at other learning rates; `ok` where it has a final value."""
    chosen: list[str]
    """Ids of the trials that were compared or counted: each seed at the learning rate that is best
    on the other seeds of its arm."""
    exploratory: list[str]
    """Why the result is exploratory; empty where it is confirmatory."""
    notes: list[str]
    counts: dict[str, int]

    @property
    def finished(self) -> list[str]:
        """Ids of the chosen trials that ended well: the means of curves are theirs."""
        t = self.frames.trials
        return t.loc[t["id"].isin(self.chosen) & (t["status"] == "done"), "id"].tolist()

    @property
    def unfinished(self) -> bool:
        """Whether some trial has not ended."""
        return any(status not in ENDED for status in self.counts)

    @property
    def ladder(self) -> bool:
        """Whether some arm's reference is not the baseline."""
        r = self.table["reference"].dropna()
        return bool((r != self.baseline).any())

    @property
    def rungs(self) -> bool:
        """Whether each arm's reference is the one above it in the table: a ladder of one order."""
        names, references = self.table["arm"].tolist(), self.table["reference"].tolist()
        return self.ladder and references[1:] == names[:-1]

    def to_json(self) -> dict[str, Any]:
        """The object that `ablate report --json` prints."""
        rows = self.table.to_dict("records")
        return {
            "study": self.study,
            "question": self.manifest.get("question"),
            "design": self.manifest.get("design"),
            "metric": self.rule.metric,
            "baseline": self.baseline,
            "smallest_effect": self.rule.smallest_effect,
            "alpha": self.rule.alpha,
            "correction": self.rule.correction,
            "sigma": plain(self.fit.sigma),
            "df": self.fit.df,
            "paired": self.fit.blocked,
            "exploratory": self.exploratory,
            "notes": self.notes,
            "counts": self.counts,
            "arms": [{str(k): plain(v) for k, v in row.items()} for row in rows],
        }


def judge(frames: Frames, *, metric: str | None = None, partial: bool = False) -> Judgement:
    """Judges one study.

    Args:
        frames: of a single study.
        metric: another metric than the frozen one: the result is marked exploratory.
        partial: judge what has ended of an unfinished study: marked exploratory too.

    Raises:
        StudyError: an unfinished study without `partial`, an unknown metric, trials that cannot be
            compared.
    """
    (study, manifest), *more = frames.manifests.items()
    if more:
        raise StudyError("judge() takes one study; use frames.study(name).")
    rule, exploratory = read_rule(manifest, metric)
    trials = frames.trials
    counts = {k: int(v) for k, v in trials["status"].value_counts(sort=False).sort_index().items()}
    open_trials = trials[~trials["status"].isin(ENDED)]
    if len(open_trials):
        said = ", ".join(f"{n} {s}" for s, n in counts.items())
        if not partial:
            raise StudyError(
                f"Study {study} is unfinished: {said} (for example {open_trials['id'].iloc[0]}). "
                f"Launch it again to run what is missing, or judge what has ended with --partial "
                f"(marked exploratory)."
            )
        exploratory.append(f"the study is unfinished: {said}")
    rule, reasons, looks = at_look(rule, manifest, trials)
    exploratory += reasons

    ended = trials[trials["status"].isin(["done", "diverged"])].copy()
    _require_metric(trials, ended, rule.metric, study)
    ended[rule.metric] = ended[rule.metric].astype(float) if rule.metric in ended else np.nan
    ended["ok"] = (ended["status"] == "done") & np.isfinite(ended[rule.metric])
    by = chooser(rule, read_rule(manifest)[0], ended)
    lrs = choose_lr(ended, by.metric, lower_is_better=by.lower_is_better)
    judging = choose_by_seed(ended, by.metric, lower_is_better=by.lower_is_better)
    chosen = ended.merge(judging.rename(columns={"lr": "best"}), on=["arm", "seed"])
    chosen = chosen[chosen["lr"].isna() | (chosen["lr"] == chosen["best"])]

    references, baseline = _references(manifest, trials)
    pairs = [(a, r) for a, r in references.items() if r is not None]
    check_comparable(frames, pairs)
    values = pd.DataFrame(
        {
            "arm": chosen["arm"],
            "seed": chosen["seed"],
            "value": np.where(chosen["ok"], chosen[rule.metric], np.nan),
        }
    )
    table, model = effects(
        values,
        references,
        rule,
        baseline=baseline,
        edges=set(lrs.loc[lrs["edge"], "arm"]) if by is rule else (),
        withheld=other_texts(frames, pairs, rule.metric) | other_budgets(frames, pairs),
    )
    return Judgement(
        study=study,
        manifest=manifest,
        frames=frames,
        rule=rule,
        baseline=baseline,
        table=with_missing(_with_costs(table, trials, chosen, lrs), trials),
        fit=model,
        values=values,
        lrs=lrs,
        ended=ended,
        chosen=chosen["id"].tolist(),
        exploratory=exploratory,
        notes=[
            *looks,
            *notes_of(model, lrs, judging, trials, "" if by is rule else by.metric),
            *moved(frames.events),
            *damages(trials),
        ],
        counts=counts,
    )


def _references(
    manifest: Mapping[str, Any], trials: pd.DataFrame
) -> tuple[dict[str, str | None], str | None]:
    arms = manifest.get("arms") or [{"name": a} for a in trials["arm"].unique()]
    names = [a["name"] for a in arms]
    baseline = manifest.get("baseline") or (names[0] if names else None)
    references = {a["name"]: a.get("reference") for a in arms}
    for name in names:
        if name != baseline and references[name] is None:
            references[name] = baseline
    if baseline in references:
        references[baseline] = None
    # The baseline first, the rest in the order of the manifest.
    return dict(sorted(references.items(), key=lambda item: item[0] != baseline)), baseline


def _require_metric(trials: pd.DataFrame, ended: pd.DataFrame, metric: str, study: str) -> None:
    done = ended[ended["status"] == "done"]
    if not len(done) or (metric in done and pd.api.types.is_numeric_dtype(done[metric])):
        return
    there = [
        c
        for c in trials.columns
        if "/" in c and not c.startswith("level/") and pd.api.types.is_numeric_dtype(trials[c])
    ]
    raise StudyError(
        f"metric={metric}: no trial of study {study} recorded it. "
        f"Recorded: {', '.join(there) or 'nothing'}. Name one of these with --metric."
    )


def _with_costs(
    table: pd.DataFrame, trials: pd.DataFrame, chosen: pd.DataFrame, lrs: pd.DataFrame
) -> pd.DataFrame:
    """What each arm cost: parameters, FLOPs, speed (median over its trials), and its learning
    rate.
    """
    out = table.merge(lrs[["arm", "lr"]], on="arm", how="left")
    failed = trials[trials["status"] == "failed"].groupby("arm").size()
    out["failed"] = out["arm"].map(failed).fillna(0).astype(int)
    for column in (
        "parameters",
        "flops_per_token",
        "flops",
        "tokens",
        "seconds",
        "tokens_per_second",
    ):
        source = chosen if column in chosen and chosen[column].notna().any() else trials
        if column in source:
            by_arm = (
                source.assign(**{column: pd.to_numeric(source[column])})
                .groupby("arm")[column]
                .median()
            )
            out[column] = out["arm"].map(by_arm)
    return out


def damages(trials: pd.DataFrame) -> list[str]:
    """What is wrong with the files of trials, by trial."""
    if "damage" not in trials:
        return []
    wrong = trials[trials["damage"].notna()]
    return [f"Trial {id}: {what}" for id, what in zip(wrong["id"], wrong["damage"], strict=True)]


def plain(value: Any) -> Any:
    """As JSON has it: what is not finite is null."""
    if value is None or value is pd.NA:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) >= 1e4 else value
    return value
