"""How often `spikes=stop` ends a run that comes back, and how soon one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ablate.spikes.responses import StopRule
from benchmarks.spike_curves import Array, backgrounds, curves_in, load

ROWS = 4000


def stopped(folder: Path, count: int, seed: int = 0) -> dict[str, Any]:
    """(ended, of) on the labelled curves and on planted recoveries; delays on divergences."""
    out: dict[str, Any] = {}
    paths = [p for part in ("interventions", "public") for p in curves_in(folder / part)]
    out["curves"] = (sum(_ends(load(p).loss) is not None for p in paths), len(paths))
    rng = np.random.default_rng(100 * seed + 12)
    back, lost, delays = [], [], []
    for _, loss in backgrounds(folder, ROWS, count, 100 * seed + 12, start=True):
        at = int(rng.integers(400, 1500))
        rest = np.arange(ROWS - at)
        learnt = float(np.median(loss[:32]) - np.median(loss[at - 32 : at]))
        height = learnt * rng.uniform(0.2, 2.0)
        tau = 10 ** rng.uniform(1, 3.2)  # 10 to 1,600 rows until a third of it is left
        returning, gone = loss.copy(), loss.copy()
        returning[at:] += height * np.exp(-rest / tau)
        gone[at:] += learnt * np.minimum(rng.uniform(0.7, 2.0), rest / rng.uniform(1, 400))
        back.append(_ends(returning) is not None)
        end = _ends(gone)
        lost.append(end is not None)
        delays += [] if end is None else [end - at]
    out["recoveries"] = (sum(back), len(back))
    out["divergences"] = (sum(lost), len(lost))
    out["delay"] = float(np.median(delays)) if delays else float("nan")
    return out


def _ends(loss: Array) -> int | None:
    return StopRule().run(loss.tolist())
