"""The report's folder: every table and figure as a file, the same bytes at every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from ablate.analysis.beside import beside
from ablate.analysis.cells import cells
from ablate.analysis.display import decimals, level
from ablate.analysis.judgement import Judgement
from ablate.analysis.latex import latex, latex_table
from ablate.analysis.markdown import markdown
from ablate.analysis.material import Material
from ablate.analysis.page import page
from ablate.analysis.registry import SECTIONS, Section, sections
from ablate.rundir import write_atomic

__all__ = ["draw", "drawing", "publish", "write"]


Made = list[tuple[Section, pd.DataFrame]]


def publish(j: Judgement, folder: Path) -> Path:
    """Writes index.html, report.md, each table as .csv, .parquet and .tex, and the pictures;
    returns the page.

    What an earlier report wrote and this one has nothing to say about is removed.

    Args:
        j: the judgement.
        folder: made where there is none.
    """
    m = Material(j)
    with drawing(m, folder):
        return write(m, sections(m), folder)


@contextmanager
def drawing(m: Material, folder: Path) -> Iterator[None]:
    """Has the pictures drawn while the block makes the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = m.curves  # before the child: both need them
    with beside(lambda: draw(m.j, curves, folder)):
        yield


def draw(j: Judgement, curves: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """The figures for documents."""
    # Imported here, where it takes nobody's time but the child's.
    from ablate.analysis.pictures import curves_picture, effects_picture, save

    save(effects_picture(j), folder / "effects")
    save(curves_picture(j, curves), folder / "curves")


def write(m: Material, made: Made, folder: Path) -> Path:
    """All but the pictures; returns the page.

    Args:
        m: the material.
        made: its sections.
        folder: that is there.
    """
    j = m.j
    for name, table in _tables(m, made).items():
        write_atomic(folder / f"{name}.csv", _csv(table))
        table.to_parquet(folder / f"{name}.parquet", index=False)
    for section, table in made:
        text = cells(table, section.columns, decimals(j))
        write_atomic(folder / f"{section.name}.tex", latex_table(section, text, level(j)))
    write_atomic(folder / "report.md", markdown(j, made))
    write_atomic(folder / "effects.tex", latex(j))
    write_atomic(folder / "index.html", page(m, made))
    _remove_stale(folder, {section.name for section, _ in made})
    return folder / "index.html"


def _tables(m: Material, made: Made) -> dict[str, pd.DataFrame]:
    curves = [c.assign(metric=name) for name, c in m.curves.items()]
    return {
        "effects": m.j.table,
        "trials": m.j.frames.trials,
        "curves": pd.concat(curves or [pd.DataFrame({"metric": []})], ignore_index=True),
        **{section.name: table for section, table in made},
    }


def _csv(table: pd.DataFrame) -> str:
    """By pyarrow: a curve of a thousand trials is written ten times as fast as by pandas."""
    target = pa.BufferOutputStream()
    plain = pa.Table.from_pandas(table, preserve_index=False)
    if plain.num_columns:
        csv.write_csv(plain, target, csv.WriteOptions(quoting_style="needed"))
    return target.getvalue().to_pybytes().decode()


def _remove_stale(folder: Path, names: set[str]) -> None:
    for section in SECTIONS:
        if section.name not in names:
            for suffix in ("csv", "parquet", "tex"):
                (folder / f"{section.name}.{suffix}").unlink(missing_ok=True)
