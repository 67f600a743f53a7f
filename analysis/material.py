"""What the tables and plots of a report are made from: a judgement, its curves thinned once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ablate.analysis.bands import Thinner
from ablate.analysis.judgement import Judgement
from ablate.analysis.tables.stability import events_of
from ablate.spikes import Event

__all__ = ["METRICS", "Material"]

METRICS = ("train/loss", "val/bpb", "val/loss", "train/grad_norm", "train/update_norm")
"""Whose curves are drawn, beside the metric that decides; names that nobody recorded are passed
over."""


@dataclass(frozen=True)
class Material:
    """Read, never changed; what is costly is made once."""

    j: Judgement

    @cached_property
    def curves(self) -> dict[str, pd.DataFrame]:
        """Thinned bands by metric: those with more than one point."""
        j = self.j
        wanted = dict.fromkeys((*METRICS, j.rule.metric))
        thin = Thinner(j.frames.curves, ids=self._finished, baseline=j.baseline)
        made = {m: thin(m) for m in wanted}
        return {m: c for m, c in made.items() if c["step"].nunique() > 1}

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Those that were compared or counted."""
        t = self.j.frames.trials
        return t[t["id"].isin(self.j.chosen)].reset_index(drop=True)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Their curves, every step."""
        curves = self.j.frames.curves
        if not len(curves) or set(curves["id"].unique()) <= set(self.j.chosen):
            return curves
        return curves[curves["id"].isin(self.j.chosen)]

    @cached_property
    def events(self) -> dict[str, list[Event]]:
        """Of each trial that counts; empty where nobody looked."""
        return events_of(self.steps, self.j.frames.events)

    @property
    def effects(self) -> pd.DataFrame:
        return self.j.table

    @property
    def levels(self) -> dict[str, dict[str, str]]:
        """Of each arm, factor -> label."""
        return {a["name"]: dict(a.get("levels") or {}) for a in self.j.manifest.get("arms", [])}

    @property
    def info(self) -> Mapping[str, Any]:
        """What the design left in the manifest: orders, aliases, lineage."""
        return self.j.manifest.get("design_info") or {}

    @property
    def design(self) -> str:
        return str(self.j.manifest.get("design") or "")

    @property
    def _finished(self) -> list[str] | None:
        """None, which is quicker, where every trial finished and counts."""
        done = self.j.finished
        return None if len(done) == len(self.j.frames.trials) else done
