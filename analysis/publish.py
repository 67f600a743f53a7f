"""The report's folder: every table and figure as a file, the same bytes at every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from ablate.analysis.bands import bands
from ablate.analysis.judgement import Judgement
from ablate.analysis.latex import latex
from ablate.analysis.markdown import markdown
from ablate.analysis.page import page
from ablate.analysis.pictures import curves_picture, effects_picture, save
from ablate.rundir import write_atomic

__all__ = ["publish", "thinned_curves"]

_CURVES = ("train/loss", "val/bpb", "val/loss", "train/grad_norm")

_TABLES: dict[str, Callable[[Judgement, Mapping[str, pd.DataFrame]], pd.DataFrame]] = {
    "effects": lambda j, _: j.table,
    "trials": lambda j, _: j.frames.trials,
    "curves": lambda _, curves: pd.concat(
        [c.assign(metric=m) for m, c in curves.items()] or [pd.DataFrame({"metric": []})],
        ignore_index=True,
    ),
}
"""What is written as CSV and Parquet; a new table is one line here."""


def thinned_curves(j: Judgement) -> dict[str, pd.DataFrame]:
    """The curves that the report draws, by metric: those with more than one point."""
    wanted = dict.fromkeys((*_CURVES, j.rule.metric))
    all_of_them = {
        m: bands(j.frames.curves, m, ids=j.finished, baseline=j.baseline) for m in wanted
    }
    return {m: c for m, c in all_of_them.items() if c["step"].nunique() > 1}


def publish(j: Judgement, folder: Path) -> Path:
    """Writes index.html, report.md, effects.tex, the tables and the figures; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = thinned_curves(j)
    for name, make in _TABLES.items():
        table = make(j, curves)
        write_atomic(folder / f"{name}.csv", table.to_csv(index=False))
        table.to_parquet(folder / f"{name}.parquet", index=False)
    save(effects_picture(j), folder / "effects")
    save(curves_picture(j, curves), folder / "curves")
    write_atomic(folder / "report.md", markdown(j))
    write_atomic(folder / "effects.tex", latex(j))
    write_atomic(folder / "index.html", page(j, curves))
    return folder / "index.html"
