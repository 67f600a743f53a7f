"""The noise floor: how far seeds scattered in earlier studies with the same baseline, or a pilot.

The same baseline is one whose configuration is equal but for the seed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from ablate.errors import StudyError
from ablate.plan.power import Noise
from ablate.rundir import StudyDir, list_studies

__all__ = ["between_seeds", "known_noise", "noise_of", "noise_on_disk", "residual_sd"]

Table = dict[str, dict[int, float]]
"""Arm (and learning rate) -> seed -> final value."""

Cell = tuple[str, int]
"""Arm (and learning rate), seed."""


class _Finished(NamedTuple):
    """What a study has finished."""

    table: Table
    fingerprints: dict[Cell, str]
    """Of the trial in each cell of the table."""
    baseline: set[str]
    """The rows that are the baseline's."""


def known_noise(
    given: float | None, runs_dir: str, metric: str, baselines: Collection[str]
) -> Noise:
    """`sweep.noise` where it is given, else what lies on disk (see `noise_on_disk`)."""
    if given is not None:
        return Noise(sd=given, df=0, source="sweep.noise", kind="given")
    return noise_on_disk(runs_dir, metric, baselines)


def noise_on_disk(runs_dir: str, metric: str, baselines: Collection[str]) -> Noise:
    """The noise of the finished trials of studies with one of these baselines.

    A trial that several studies hold (one fingerprint: a copied study, or the same sweep under
    another name) is one sample, and counts in the study that has the most trials.

    Args:
        runs_dir: where studies lie.
        metric: key of the summaries.
        baselines: fingerprints of the baseline, without a seed or with one.
    """
    found: dict[str, _Finished] = {}
    for study in list_studies(runs_dir):
        try:
            finished = _finished(study, metric, baselines)
        except (StudyError, KeyError, TypeError):
            continue  # a damaged study is no reason not to plan a new one
        if finished is not None:
            found[study.name] = finished
    counted: set[str] = set()
    tables: dict[str, Table] = {}
    own: dict[str, Table] = {}
    for name, finished in sorted(found.items(), key=lambda item: -len(item[1].fingerprints)):
        seen = {cell for cell, print_ in finished.fingerprints.items() if print_ in counted}
        counted |= set(finished.fingerprints.values())
        own[name] = _without(finished.table, seen)
        # A baseline that was counted still tells how far the arms beside it scatter from it.
        arms = {cell for cell in seen if cell[0] not in finished.baseline}
        rest = _without(finished.table, arms)
        tables[name] = rest if rest.keys() - finished.baseline else own[name]
    return noise_of(tables, runs_dir, own)


def noise_of(tables: dict[str, Table], runs_dir: str, own: dict[str, Table] | None = None) -> Noise:
    """Pooled over studies. Each is a two-way table, arms by seeds; what row and column means leave
    over is noise. Where no study has two arms, the baseline's own scatter has to do.

    Args:
        tables: of each study.
        runs_dir: for the sentence where there is none.
        own: the tables for the scatter within arms, where they are not the same.
    """
    own = tables if own is None else own
    paired, total = _Pool(), _Pool()
    studies, pilots = [], []
    for name, table in tables.items():
        if paired.add(*residual_sd(table)):
            studies.append(name)
        if total.add(*between_seeds(own[name])):
            pilots.append(name)
    if paired.df:
        return Noise(
            sd=paired.sd,
            df=paired.df,
            source=", ".join(studies),
            unpaired=total.sd,
            kind="studies",
        )
    if total.df:
        source = f"{', '.join(pilots)}, the baseline alone"
        return Noise(sd=total.sd, df=total.df, source=source, unpaired=total.sd, kind="pilot")
    source = f"no study in {runs_dir} has finished trials of this baseline"
    if tables:
        count = "1 study has" if len(tables) == 1 else f"{len(tables)} studies have"
        source = f"in {runs_dir} {count} this baseline, and none has finished two seeds of it"
    return Noise(sd=None, df=0, source=source)


class _Pool:
    """Sums of squares over studies."""

    def __init__(self) -> None:
        self.squares, self.df = 0.0, 0

    def add(self, sd: float, df: int) -> bool:
        self.squares, self.df = self.squares + sd**2 * df, self.df + df
        return df > 0

    @property
    def sd(self) -> float:
        return math.sqrt(self.squares / self.df)


def residual_sd(table: Table) -> tuple[float, int]:
    """(sd, degrees of freedom) of an arm + seed model.

    Arms enter with the seeds that all arms of two seeds or more have finished.
    """
    table = {arm: row for arm, row in table.items() if len(row) > 1}
    seeds = set.intersection(*(set(row) for row in table.values())) if table else set()
    arms, n = len(table), len(seeds)
    df = (arms - 1) * (n - 1)
    if arms < 2 or n < 2:
        return 0.0, 0
    row_means = {arm: sum(row[s] for s in seeds) / n for arm, row in table.items()}
    column_means = {s: sum(row[s] for row in table.values()) / arms for s in seeds}
    grand = sum(row_means.values()) / arms
    squares = sum(
        (row[s] - row_means[arm] - column_means[s] + grand) ** 2
        for arm, row in table.items()
        for s in seeds
    )
    return math.sqrt(squares / df), df


def between_seeds(table: Table) -> tuple[float, int]:
    """(sd, degrees of freedom) of the seeds of one arm, pooled over arms."""
    squares, df = 0.0, 0
    for row in table.values():
        mean = sum(row.values()) / len(row)
        squares += sum((value - mean) ** 2 for value in row.values())
        df += len(row) - 1
    return (math.sqrt(squares / df), df) if df else (0.0, 0)


def _without(table: Table, cells: Collection[Cell]) -> Table:
    """The table without these cells, and without rows that they leave empty."""
    kept = {
        arm: {seed: value for seed, value in row.items() if (arm, seed) not in cells}
        for arm, row in table.items()
    }
    return {arm: row for arm, row in kept.items() if row}


def _finished(study: StudyDir, metric: str, baselines: Collection[str]) -> _Finished | None:
    """None where the study has another baseline.

    Arms with a trial that diverged are left out: what is left of them is not noise. A trial that
    has not ended, as in a study that is still at its pilot, is only missing.
    """
    manifest = study.manifest()
    trials, baseline = manifest["trials"], manifest["baseline"]
    known = {t["fingerprint"] for t in trials if t["arm"] == baseline}
    known |= {a.get("fingerprint") for a in manifest.get("arms", []) if a["name"] == baseline}
    if not known & set(baselines):
        return None
    table: Table = {}
    prints: dict[Cell, str] = {}
    own: set[str] = set()
    broken: set[str] = set()
    for trial, status, value in _values(study, trials, metric):
        arm = f"{trial['arm']} {trial.get('lr')}"
        if status == "diverged" or (value is not None and not math.isfinite(value)):
            broken.add(arm)
        elif value is not None:
            table.setdefault(arm, {})[trial["seed"]] = value
            prints[arm, trial["seed"]] = trial["fingerprint"]
            if trial["arm"] == baseline:
                own.add(arm)
    return _Finished(
        {arm: row for arm, row in table.items() if arm not in broken},
        {cell: print_ for cell, print_ in prints.items() if cell[0] not in broken},
        own,
    )


def _values(
    study: StudyDir, trials: list[dict[str, Any]], metric: str
) -> Iterator[tuple[dict[str, Any], str, float | None]]:
    for trial in trials:
        folder = study.trial(trial["id"])
        status = folder.state().status
        summary = folder.summary() if status == "done" else None
        yield trial, status, None if summary is None else summary.get(metric)
