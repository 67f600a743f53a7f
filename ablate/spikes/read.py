"""Records with a step and a loss from files of others: CSV, TSV and JSON lines.

Column names are guessed from those in use; `Table.said` tells what was taken for what.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.errors import DataError

__all__ = ["Table", "from_rows", "read_table"]

STEPS = (
    "step", "global_step", "trainer/global_step", "train/global_step", "steps", "iteration", "iter",
    "_step",
)  # fmt: skip
"""wandb's own `_step` counts rows that were logged, so it comes last."""
LOSSES = ("train/loss", "loss", "train_loss", "train/CrossEntropyLoss", "training_loss", "lm loss")
SIGNALS = {
    "grad_norm": ("train/grad_norm", "grad_norm", "gradient_norm", "optim/total_grad_norm"),
    "update_norm": ("train/update_norm", "update_norm"),
    "activation_rms": ("rms_max", "activation_rms"),
    "attention_logit": ("max_attn_logit", "attention_logit_max"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "optim/learning_rate_group0"),
}
LARGEST_STEP = 2.0**53
SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True)
class Table:
    """One record: equal lengths, one entry a row that has both a step and a loss."""

    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    signals: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    rows: NDArray[np.int64]
    """Row in the file, counted from 0 behind the header."""
    said: str = ""


def read_table(path: Path, *, step: str | None = None, loss: str | None = None) -> Table:
    """Reads a file.

    Raises:
        DataError: for another kind of file, or without the columns.
    """
    compressed = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if compressed else path).suffix.lower()
    if suffix not in (*SEPARATORS, *JSON_LINES):
        raise DataError(
            f"{path} is none of CSV (.csv), TSV (.tsv) and JSON lines (.jsonl), as they are or "
            "compressed (.csv.gz): its name should end like one of these."
        )
    opened = gzip.open if compressed else open
    try:
        with opened(path, "rt", newline="", encoding="utf-8-sig", errors="replace") as file:
            if suffix in SEPARATORS:
                rows: list[dict[str, Any]] = list(
                    csv.DictReader(file, delimiter=SEPARATORS[suffix])
                )
            else:
                rows = _json_lines(path, file.read().splitlines())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be decompressed: {error}.") from None
    return from_rows(rows, str(path), step=step, loss=loss)


def from_rows(
    rows: Sequence[dict[str, Any]], source: str, *, step: str | None = None, loss: str | None = None
) -> Table:
    """The record in rows of named values; rows without a loss (validation only) are left out."""
    names = list(dict.fromkeys(str(k) for row in rows for k in row if k is not None))
    if not rows:
        raise DataError(f"{source} has no rows.")
    what = _column(names, loss, LOSSES, "--loss", source)
    learnt = [r for r in rows if not _empty(r.get(what))]
    usable = [n for n in _known(names, STEPS) if _in_most(learnt, n)]
    at = _column(names, step, usable or STEPS, "--step", source)
    found = {
        k: c for k, known in SIGNALS.items() if (c := _first(names, known)) not in (None, what)
    }
    kept = [i for i, r in enumerate(rows) if not _empty(r.get(at)) and not _empty(r.get(what))]
    if not kept:
        raise DataError(f"{source}: no row has both {at} and {what}. Name others: --step, --loss.")
    signals = {k: _numbers(rows, kept, str(c), source) for k, c in found.items()}
    steps = _numbers(rows, kept, at, source)
    if not (np.abs(steps) < LARGEST_STEP).all():  # false also for what is not finite
        raise DataError(f"{source}: the step column {at} holds values that are no steps.")
    return Table(
        steps=steps.astype(np.int64),
        losses=_numbers(rows, kept, what, source),
        signals={k: v for k, v in signals.items() if np.isfinite(v).any()},
        rows=np.asarray(kept, dtype=np.int64),
        said=f"{source}: step = {at}, loss = {what}"
        + "".join(f", {k} = {c}" for k, c in found.items()),
    )


def _json_lines(path: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # too deep, or a number of 5,000 digits
            if i == len(lines) - 1 and rows:
                break  # a run that is being written: its last line may be half there
            raise DataError(f"{path}, line {i + 1} is not JSON; one object a line.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {i + 1} is not an object such as {{'step': 1, ...}}.")
        rows.append(row)
    return rows


def _column(
    names: list[str], given: str | None, known: Sequence[str], option: str, source: str
) -> str:
    name = given if given in names else _first(names, known if given is None else (given,))
    if name is None:
        wanted = f"column {given!r}" if given else f"column that looks like {known[0]}"
        shown = ", ".join(names[:20])
        raise DataError(f"{source} has no {wanted}. Name one with {option}; there are: {shown}.")
    return name


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    return next(iter(_known(names, known)), None)


def _known(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Those of `known` that are there; as `run name - train/loss` too, as wandb exports it."""
    lower = {n.lower().strip(): n for n in reversed(names)}
    exported = {n.rsplit(" - ", 1)[-1]: whole for n, whole in lower.items() if " - " in n}
    lower = {**exported, **lower}
    return [lower[k.lower()] for k in known if k.lower() in lower]


def _in_most(rows: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether at least half of the rows have it: a step that only evaluations note is none."""
    return 2 * sum(not _empty(r.get(name)) for r in rows) >= len(rows)


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _numbers(
    rows: Sequence[dict[str, Any]], kept: Sequence[int], name: str, source: str
) -> NDArray[np.float64]:
    values = []
    for i in kept:
        value = rows[i].get(name)
        try:
            values.append(float("nan") if _empty(value) else float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            shown = f"{name} is {str(value)[:40]!r}, not a number"
            raise DataError(f"{source}, row {i}: {shown}.") from None
    return np.array(values, dtype=np.float64)
