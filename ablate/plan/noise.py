"""The noise floor: how far seeds scattered in earlier studies with the same baseline."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from ablate.errors import StudyError
from ablate.plan.power import Noise
from ablate.rundir import StudyDir, list_studies

__all__ = ["noise_on_disk", "residual_sd"]


def noise_on_disk(runs_dir: str, metric: str, baseline_fingerprints: Collection[str]) -> Noise:
    """The pooled residual sd of the finished studies that ran one of these baseline trials.

    Each study is a two-way table, arms by seeds; what row and column means leave over is noise.
    """
    squares, df, studies = 0.0, 0, []
    same_baseline = 0
    for study in list_studies(runs_dir):
        try:
            table = _table(study, metric, baseline_fingerprints)
        except (StudyError, KeyError, TypeError):
            continue  # a damaged study is no reason not to plan a new one
        if table is None:
            continue
        same_baseline += 1
        sd, degrees = residual_sd(table)
        if degrees:
            squares, df = squares + sd**2 * degrees, df + degrees
            studies.append(study.name)
    if not df:
        found = (
            f"{same_baseline} with it, none with two arms finished at two common seeds"
            if same_baseline
            else "none with it"
        )
        return Noise(
            sd=None, df=0, source=f"no finished study with this baseline in {runs_dir} ({found})"
        )
    return Noise(sd=math.sqrt(squares / df), df=df, source=", ".join(studies))


def residual_sd(table: dict[str, dict[int, float]]) -> tuple[float, int]:
    """(sd, degrees of freedom) of an arm + seed model; `table` is arm -> seed -> value.

    Arms enter with the seeds that all of them have finished.
    """
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


def _table(
    study: StudyDir, metric: str, fingerprints: Collection[str]
) -> dict[str, dict[int, float]] | None:
    """Arm (and learning rate) -> seed -> final value; None where the study has another baseline.

    Arms with a trial that diverged or is missing are left out: what is left of them is not noise.
    """
    manifest = study.manifest()
    trials = manifest["trials"]
    baseline = manifest["baseline"]
    if not any(t["arm"] == baseline and t["fingerprint"] in fingerprints for t in trials):
        return None
    table: dict[str, dict[int, float]] = {}
    broken: set[str] = set()
    for trial, value in _values(study, trials, metric):
        arm = f"{trial['arm']} {trial.get('lr')}"
        if value is None or not math.isfinite(value):
            broken.add(arm)
        else:
            table.setdefault(arm, {})[trial["seed"]] = value
    return {arm: row for arm, row in table.items() if arm not in broken}


def _values(
    study: StudyDir, trials: list[dict[str, Any]], metric: str
) -> Iterator[tuple[dict[str, Any], float | None]]:
    for trial in trials:
        folder = study.trial(trial["id"])
        done = folder.state().status == "done"
        summary = folder.summary() if done else None
        yield trial, None if summary is None else summary.get(metric)
