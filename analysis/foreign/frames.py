"""Rows of curves from elsewhere to frames: who finished, who diverged, against whom."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ablate.analysis.frames import KEYS, Frames
from ablate.errors import DataError

__all__ = ["frames_of"]


def frames_of(
    rows: pd.DataFrame,
    *,
    metric: str,
    baseline: str | None,
    study: str,
    source: str,
    endings: Mapping[tuple[str, int], str | None] | None = None,
) -> Frames:
    """A study of trials that were run one by one, each arm against the baseline.

    Args:
        rows: `arm, seed, step` and metrics, one row a trial and step.
        metric: the metric that decides.
        baseline: an arm; None: the first.
        study: its name.
        source: where the rows are from, for errors.
        endings: of (arm, seed) how it ended, where that is known; None: its final value decides.

    Raises:
        DataError: for a baseline or a metric that is not there.
    """
    arms = list(dict.fromkeys(rows["arm"]))
    base = baseline or arms[0]
    if base not in arms:
        raise DataError(f"baseline={base}: no such arm in {source}. Its arms: {', '.join(arms)}.")
    if metric not in rows:
        raise DataError(
            f"{source}: no run recorded {metric!r}. Recorded: {', '.join(map(str, rows.columns))}."
        )
    curves = rows.assign(study=study).sort_values(["arm", "seed", "step"], kind="stable")
    curves["id"] = curves["arm"] + "-s" + curves["seed"].astype(str)
    curves = curves[[*KEYS, *(c for c in curves.columns if c not in KEYS)]].reset_index(drop=True)
    curves[metric] = pd.to_numeric(curves[metric], errors="coerce")
    groups = curves.groupby("id", sort=False)
    last = groups.last()  # of each column what was measured last
    last = last.assign(id=last.index, step=groups["step"].max())[list(curves.columns)]
    measured = curves[curves[metric].notna()].groupby("id", sort=False)["step"].max()
    # A table does not tell a NaN from what was not measured. Measured were the steps of the others.
    missing = measured.reindex(last.index).fillna(-1) < min(measured.max(), last["step"].max())
    missing &= measured.reindex(last.index).fillna(-1) < last["step"]
    diverged = missing | ~(last[metric].abs() < float("inf"))
    status = pd.Series(["diverged" if d else "done" for d in diverged], index=last.index)
    for (arm, seed), ending in (endings or {}).items():
        if ending is not None:
            status[f"{arm}-s{seed}"] = ending
    last.loc[status == "diverged", metric] = float("nan")
    trials = last.assign(
        lr=float("nan"),
        reference=[None if a == base else base for a in last["arm"]],
        status=status,
        outcome=status,
        reason=None,
        steps=last["step"],
        attempt=1,
    ).reset_index(drop=True)
    manifest = {
        "study": study,
        "baseline": base,
        "design": "singles",
        "command": "# trained elsewhere",
        "table": source,
        "decide": {"metric": metric},
        "arms": [{"name": a, "reference": None if a == base else base} for a in arms],
        "trials": [
            {"id": t["id"], "arm": t["arm"], "seed": t["seed"]} for t in trials.to_dict("records")
        ],
    }
    return Frames(
        trials=trials,
        curves=curves,
        events=pd.DataFrame(columns=[*KEYS, "step", "kind", "batch"]),
        manifests={study: manifest},
    )
