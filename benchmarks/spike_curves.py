"""Curves for the spike benchmark: the labelled ones, and backgrounds to plant events on."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
REAL = ("megatron_t5", "megatron_gpt3_15b", "modded_adamw", "llmc_gpt2_124m")
SYNTHETIC = ("white", "autocorrelated", "heavy")


@dataclass(frozen=True)
class Curve:
    steps: NDArray[np.int64]
    loss: Array
    signals: dict[str, Array]


OURS = Path(__file__).parent / "curves"


def find_curves(given: str | None = None) -> Path:
    """The folder of labelled curves: given, named by ABLATE_CURVES, or the repository's own."""
    return Path(given or os.environ.get("ABLATE_CURVES") or OURS)


def curves_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.csv*") if name_of(p) != "labels")


def name_of(path: Path) -> str:
    return path.name.partition(".csv")[0]


def load(path: Path) -> Curve:
    """A CSV file, or its compressed form `.gz`, also where the other is asked for."""
    packed = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    plain = path.exists() and path.suffix != ".gz"
    with open(path, newline="") if plain else gzip.open(packed, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {k: np.array([float(r[k] or "nan") for r in rows]) for k in rows[0]}
    steps, loss = columns.pop("step").astype(np.int64), columns.pop("loss")
    return Curve(steps, loss, {k: v for k, v in columns.items() if np.isfinite(v).any()})


def labels(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def synthetic(name: str, rows: int, rng: np.random.Generator) -> Array:
    """A power-law learning curve with noise of one of three kinds."""
    t = np.arange(rows)
    noise = rng.normal(0, 1, rows)
    if name == "autocorrelated":
        for i in range(1, rows):
            noise[i] += 0.5 * noise[i - 1]
    elif name == "heavy":
        noise = rng.standard_t(4, rows)
    return 2.0 + 8.0 * (1 + t / 20) ** -0.6 + 0.04 * noise


def backgrounds(
    folder: Path, rows: int, count: int, seed: int, *, start: bool = False
) -> Iterator[tuple[str, Array]]:
    """`count` stretches of `rows` rows in turn from all backgrounds; `start`: from row 0."""
    rng = np.random.default_rng(seed)
    real = {n: load(folder / "public" / f"{n}.csv").loss for n in REAL}
    names = [*SYNTHETIC, *real]
    for i in range(count):
        name = names[i % len(names)]
        if name in real:
            loss = real[name][np.isfinite(real[name])]
            first = 0 if start else int(rng.integers(500, len(loss) - rows))
            yield name, loss[first : first + rows].copy()
        else:
            loss = synthetic(name, rows + (0 if start else 500), rng)
            yield name, loss[-rows:]


def local_sigma(loss: Array, at: int, around: int = 150, neighbours: int = 32) -> float:
    """1.4826 MAD around row `at` of the residuals against the median of each row's neighbours.

    The row itself is left out of its median, so the estimate is unbiased for white noise once the
    variance of the median (pi / 2 / neighbours) is taken off.
    """
    half = neighbours // 2
    low, high = max(0, at - around), min(len(loss), at + around)
    part = np.pad(loss[low:high], half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(part, neighbours + 1)
    centre = np.median(np.delete(windows, half, axis=1), axis=1)
    residual = loss[low:high] - centre
    spread = 1.4826 * np.median(np.abs(residual - np.median(residual)))
    return float(spread / np.sqrt(1 + np.pi / 2 / neighbours))


def spike(height: float, tau: float = 5.0, rows: int = 30) -> Array:
    return height * np.exp(-np.arange(rows) / tau)


def bump(height: float, rows: int = 240) -> Array:
    return height * np.sin(np.pi * np.arange(rows) / rows)
