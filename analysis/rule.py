"""The decision rule: written before the runs, frozen in the manifest."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate.analysis.multiplicity import CORRECTIONS
from ablate.design.rule import rule_changes
from ablate.errors import ConfigError

__all__ = ["Rule", "at_look", "read_rule"]

_HIGHER_IS_BETTER = ("accuracy", "tokens_per_second", "score", "mfu", "hit_rate", "real_tokens")


@dataclass(frozen=True, kw_only=True)
class Rule:
    metric: str = "val/bpb"
    smallest_effect: float = 0.005
    """The smallest difference that matters, in units of the metric."""
    alpha: float = 0.05
    correction: str = "holm"
    margin: float | None = None
    """Of equivalence; None: the smallest effect."""
    look: str = ""
    """Which of the declared looks this is, in words; alpha is then that look's own."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise ConfigError("decide.alpha", self.alpha, "must lie in (0, 0.5)")
        if not self.smallest_effect >= 0:
            raise ConfigError(
                "decide.smallest_effect", self.smallest_effect, "must not be negative"
            )
        if self.margin is not None and not self.margin > 0:
            raise ConfigError("decide.margin", self.margin, "must be greater than 0")
        if self.correction not in CORRECTIONS:
            known = "must be one of " + ", ".join(CORRECTIONS)
            raise ConfigError("decide.correction", self.correction, known)

    @property
    def equivalence(self) -> float:
        """Half the width of the region in which two arms count as equivalent."""
        return self.smallest_effect if self.margin is None else self.margin

    @property
    def lower_is_better(self) -> bool:
        last = self.metric.rpartition("/")[2]
        return self.metric.startswith("spikes/") or not last.startswith(_HIGHER_IS_BETTER)


def read_rule(manifest: Mapping[str, Any], metric: str | None = None) -> tuple[Rule, list[str]]:
    """The rule of a study, and why its result is only exploratory (empty: it is not).

    Args:
        manifest: of the study.
        metric: another metric than the frozen one, if any.
    """
    frozen = manifest.get("decide")
    names = {f.name for f in dataclasses.fields(Rule)} - {"look"}
    rule = Rule(**{k: v for k, v in (frozen or {}).items() if k in names and v is not None})
    reasons = rule_changes(manifest, {"metric": metric} if metric != rule.metric else None)
    if not frozen or manifest.get("design") == "singles":
        said = (
            "its trials were run one by one, without a plan: arms, seeds and decision rule were "
            "not fixed before the runs"
        )
        reasons = [said, *(reasons if frozen else [])]
    return dataclasses.replace(rule, metric=metric or rule.metric), reasons


def at_look(
    rule: Rule, manifest: Mapping[str, Any], trials: pd.DataFrame
) -> tuple[Rule, list[str], list[str]]:
    """The rule at this look, why it is only exploratory, and what people should know.

    Looks at growing numbers of seeds were declared with their levels in the manifest; any other
    look, and any look of a study that grew without declaring one, is optional stopping. A look of
    which trials failed or were cancelled is not the declared one either: who stopped them may have
    seen the others. So may who cancelled trials of a study without looks. Diverged trials have
    their result. The level stays the look's.

    Args:
        rule: of the study.
        manifest: of the study.
        trials: of the study, as planned so far: arm, seed, id and status.
    """
    each = trials.groupby("arm")["seed"].nunique()
    seeds = int(each.min()) if len(each) else 0  # where arms differ, the fewest
    spending = (manifest.get("decide") or {}).get("spending") or {}
    looks = [int(n) for n in spending.get("looks") or []]
    levels = spending.get("alpha_at_look") or []
    history = [dict(h) for h in manifest.get("history", [])]
    reasons = _code_changes(history, manifest.get("code") or {})
    # The newest revision says what the plan made of it; older manifests leave it to be seen.
    recorded = "exploratory" in history[-1] if history else False
    if recorded and history[-1]["exploratory"]:
        reasons.append(str(history[-1]["exploratory"]))
    elif not looks and not recorded and int(manifest.get("revision", 1)) > 1:
        what = "; ".join(filter(None, (str(h.get("what", "")) for h in history[1:])))
        said = what or "see its history"
        if manifest.get("decide"):
            reasons.append(
                f"the study was changed after its launch, and no looks were declared: {said}"
            )
    if not looks:
        return rule, [*reasons, *_given_up(trials)], []
    if seeds not in looks or len(levels) != len(looks):
        planned = ", ".join(map(str, looks))
        return rule, [*reasons, f"an unplanned look at {seeds} seeds (declared: {planned})"], []
    number, level = looks.index(seeds), float(levels[looks.index(seeds)])
    at = f"{number + 1} of {len(looks)} ({seeds} of {looks[-1]} seeds)"
    lost = trials[~trials["status"].isin(["done", "diverged"])]
    if len(lost):
        how = ", ".join(f"{n} {s}" for s, n in lost["status"].value_counts().sort_index().items())
        again = lost["status"].isin(["failed", "cancelled"]).any()
        reasons.append(
            f"declared look {at} is not complete: of its {len(trials)} trials {how} "
            f"(for example {lost['id'].iloc[0]})"
            + ("; `ablate retry` runs what failed or was cancelled" if again else "")
        )
        return _at_level(rule, level, ""), reasons, []
    name = str(spending.get("rule", "obrien_fleming")).replace("obrien_fleming", "O'Brien-Fleming")
    look = (
        f"Look {at}: {name} spending leaves it a level of {level:.3g} of the declared "
        f"{rule.alpha:g}."
    )
    return _at_level(rule, level, look), reasons, [look]


def _given_up(trials: pd.DataFrame) -> list[str]:
    gone = trials[trials["status"] == "cancelled"]
    if not len(gone):
        return []
    return [
        f"{len(gone)} of its {len(trials)} planned trials cancelled (for example "
        f"{gone['id'].iloc[0]}), maybe by somebody who had seen the others; `ablate retry` runs "
        "them"
    ]


def _at_level(rule: Rule, level: float, look: str) -> Rule:
    return dataclasses.replace(rule, alpha=max(level, 1e-12), look=look)


def _code_changes(history: list[dict[str, Any]], first: Mapping[str, Any]) -> list[str]:
    """Revisions that were launched with other code than the one before."""
    known = [
        (h.get("revision", i + 1), str((h.get("code") or ({} if i else first)).get("commit") or ""))
        for i, h in enumerate(history)
    ]
    known = [(r, c) for r, c in known if c]
    return [
        f"the code changed between its revisions ({a[:9]} to {b[:9]} at revision {r})"
        for (_, a), (r, b) in itertools.pairwise(known)
        if a != b
    ]
