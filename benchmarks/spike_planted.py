"""Events planted on public curves and synthetic backgrounds, alone and in one of two arms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ablate.spikes import compare
from benchmarks.spike_curves import Array, backgrounds, bump, load, local_sigma, spike
from benchmarks.spike_detectors import DETECTORS, ours, touching

ROWS, AT = 1400, 900
PLATEAU = np.concatenate((np.ones(40), np.linspace(1, 0.6, 30), np.linspace(0.6, 0, 30)))
"""As a learning rate that is too high for 40 rows leaves it."""


def planted(
    folder: Path, count: int, seed: int, plant: Callable[[Array, float], tuple[int, int]]
) -> dict[str, dict[str, float]]:
    """Recall, delay and false alarms of every detector on one kind of event."""
    found = {name: ([], [], [0]) for name in DETECTORS}
    rows = 0
    for _, loss in backgrounds(folder, ROWS, count, seed):
        start, end = plant(loss, local_sigma(loss, AT))
        rows += len(loss)
        for name, detector in DETECTORS.items():
            alarms = detector(loss)
            hits = touching(alarms, start, end)
            hit, delay, false = found[name]
            hit.append(bool(hits))
            if hits:
                delay.append(max(0, min(a[1] for a in hits) - start))
            # What lies after a planted event that never ends is not a false alarm.
            false[0] += sum(a not in hits and a[1] < AT for a in alarms)
    return {
        name: {
            "recall": float(np.mean(hit)),
            "delay": float(np.median(delay)) if delay else float("nan"),
            "false_alarms": 1000 * false[0] / (rows * AT / ROWS),
        }
        for name, (hit, delay, false) in found.items()
    }


def add(loss: Array, at: int, shape: Array) -> tuple[int, int]:
    end = min(len(loss), at + len(shape))
    loss[at:end] += shape[: end - at]
    return at, end - 1


def masked(loss: Array, sigma: float, rng: np.random.Generator) -> tuple[int, int]:
    add(loss, AT, spike(60 * sigma))
    at = AT + int(rng.integers(40, 121))
    add(loss, at, spike(10 * sigma))
    return at, at + 10


def planted_cells(folder: Path, count: int, seed: int = 0) -> dict[str, Any]:
    """Every kind of event, `count` times; other seeds give other stretches and other noise."""
    rng = np.random.default_rng(100 * seed + 7)
    rest, first = ROWS - AT, 100 * seed
    return {
        "sharp 10 sigma": planted(folder, count, first + 1, lambda x, s: add(x, AT, spike(10 * s))),
        "slow 20 sigma, tau 40": planted(
            folder, count, first + 2, lambda x, s: add(x, AT, spike(20 * s, 40, 160))
        ),
        "broad 5 sigma x 240": planted(
            folder, count, first + 3, lambda x, s: add(x, AT, bump(5 * s))
        ),
        "shift + 3 sigma": planted(
            folder, count, first + 4, lambda x, s: add(x, AT, np.full(rest, 3 * s))
        ),
        "ramp .03 sigma a row": planted(
            folder,
            count,
            first + 5,
            lambda x, s: add(x, AT, np.arange(rest, dtype=np.float64) * (0.03 * s)),
        ),
        "10 sigma 40-120 rows after 60 sigma": planted(
            folder, count, first + 6, lambda x, s: masked(x, s, rng)
        ),
        "small 1 sigma x 100": planted(
            folder, count, first + 10, lambda x, s: add(x, AT, s * PLATEAU)
        ),
        "blip of one row promoted": planted(
            folder, count, first + 8, lambda x, s: add(x, AT, np.array([10 * s]))
        ),
    }


def early(folder: Path, count: int, seed: int = 0) -> dict[str, float]:
    """Recall of a 12-sigma spike in rows 30 to 95 of a run."""
    rng = np.random.default_rng(100 * seed + 9)
    hits = dict.fromkeys(DETECTORS, 0)
    for _, loss in backgrounds(folder, 300, count, 100 * seed + 9, start=True):
        at = int(rng.integers(30, 96))
        sigma = local_sigma(loss, at, 24, 8)
        add(loss, at, spike(12 * sigma))
        for name, detector in DETECTORS.items():
            hits[name] += bool(touching(detector(loss), at, at + 10))
    return {name: n / count for name, n in hits.items()}


def pairs(folder: Path, count: int, seed: int = 0) -> dict[str, float]:
    """A small event in one of two arms with the same data order, alone and paired."""
    rng = np.random.default_rng(100 * seed + 11)
    a, b = (load(folder / "public" / f"modded_{n}_opt.csv").loss for n in ("adam", "muon"))
    out: dict[str, list[float]] = {}
    for kind, shape in (("spike .05", np.full(3, 0.05)), ("shift .02", np.full(400, 0.02))):
        alone, together, delays = [], [], []
        for i in range(count):
            first = int(rng.integers(500, len(a) - 1001))
            x, y = a[first : first + 1000].copy(), b[first : first + 1000].copy()
            mine, other = (x, y) if i % 2 else (y, x)
            start, end = add(mine, 600, shape)
            steps = np.arange(1000)
            alone.append(bool(touching(ours(mine), start, end)))
            events = compare({"mine": (steps, mine), "other": (steps, other)}).events["mine"]
            hits = [e for e in events if e.is_alert and e.cause == "arm"
                    and e.start <= end + 3 and (e.end or e.start) >= start - 2]  # fmt: skip
            together.append(bool(hits))
            delays += [min(e.detect or e.start for e in hits) - start] if hits else []
        out[f"{kind} alone"] = [float(np.mean(alone))]
        out[f"{kind} paired"] = [float(np.mean(together))]
        out[f"{kind} paired delay"] = [float(np.median(delays)) if delays else float("nan")]
    return {k: v[0] for k, v in out.items()}
