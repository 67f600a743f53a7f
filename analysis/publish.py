"""The report's folder: every table and figure as a file, the same bytes at every run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ablate.analysis.bands import bands
from ablate.analysis.judgement import Judgement
from ablate.analysis.latex import latex
from ablate.analysis.markdown import markdown
from ablate.rundir import write_atomic

__all__ = ["publish", "tables"]

_CURVES = ("train/loss", "val/loss", "val/bpb")


def tables(j: Judgement) -> dict[str, pd.DataFrame]:
    """The tables that are written as CSV and Parquet, by name."""
    parts = [
        bands(j.frames.curves, m, ids=j.chosen).assign(metric=m)
        for m in dict.fromkeys([*_CURVES, j.rule.metric])
    ]
    return {
        "effects": j.table,
        "trials": j.frames.trials,
        "curves": pd.concat([p for p in parts if len(p)] or parts[:1], ignore_index=True),
    }


def publish(j: Judgement, folder: Path) -> Path:
    """Writes index.html, report.md, effects.tex, the tables and the figures; returns the page's
    path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables(j).items():
        write_atomic(folder / f"{name}.csv", table.to_csv(index=False))
        table.to_parquet(folder / f"{name}.parquet", index=False)
    write_atomic(folder / "report.md", markdown(j))
    write_atomic(folder / "effects.tex", latex(j))
    return folder / "report.md"
